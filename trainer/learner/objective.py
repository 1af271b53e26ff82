"""The policy's part of the loss: from log-probs of rows to a micro-batch's share of the update's scalar.

An objective is a list of terms. Each has its loss, the tokens that it reads, its own denominator, and a coefficient
that may depend on the step.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import chain
from operator import or_
from typing import Final, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from envgym.core.segments import Origin
from envgym.core.tree import Source
from envgym.errors import SettingsError
from envgym.trainer.batch.rows import TRAINED, MicroBatch, TrainRow
from envgym.trainer.learner.checkpoint import OpenReference
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.learner.settings import ObjectiveSettings
from envgym.trainer.methods.corrections import Correction, CorrectionResult
from envgym.trainer.methods.losses import (
    Aggregation,
    Denominator,
    Entropy,
    KlEstimator,
    KlToReference,
    LossBatch,
    PolicyLoss,
    TokenMean,
)
from envgym.trainer.methods.losses.aggregate import SumOverDivisor
from envgym.trainer.methods.losses.base import ReadsStates, is_corrected, log_ratio, loss_stats, scope_of
from envgym.trainer.methods.losses.kl import k3
from envgym.trainer.methods.losses.kl_reference import REFERENCE
from envgym.trainer.methods.row_ids import ORIGINS, SAMPLED, SOURCES
from envgym.trainer.methods.schedules import Constant, Schedule
from envgym.trainer.metrics.update import UpdateMetrics

TOKEN_MEAN: Final = TokenMean()
ONE: Final = Constant(value=1.0)
NOTHING: Final = Constant(value=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of an objective."""

    name: str
    """Of its metrics: `loss/<name>`."""
    loss: PolicyLoss
    coef: Schedule = ONE
    aggregation: Aggregation = TOKEN_MEAN
    sources: frozenset[Source] = SAMPLED
    """Of the rows that it reads."""
    origins: frozenset[Origin] = TRAINED
    """Of the tokens that it reads."""
    may_be_empty: str | None = None
    """Why the first rows of its sources may hold no token that it reads; None: that stops the run."""
    is_weighted: bool = True
    """Whether the correction's weights hold for it; what the correction rejects, it rejects in any case."""

    @property
    def corrects(self) -> bool:
        """Whether the correction holds for its loss at all."""
        return is_corrected(self.loss)

    def mask_of(self, row: TrainRow) -> tuple[bool, ...]:
        """Return the tokens of a row that the term reads."""
        return row.tokens_of(self.origins) if row.id.source in self.sources else (False,) * len(row)

    def mask(self, batch: MicroBatch) -> Bool[Tensor, "B T"]:
        """Return the tokens of a micro-batch that the term reads."""
        mask_BT = batch.loss_mask_BT
        if self.origins != TRAINED:
            others_BT = _is_one_of(batch.ids.origins_BT, [ORIGINS.index(origin) for origin in self.origins - TRAINED])
            others_BT = others_BT & batch.scored_mask_BT
            mask_BT = (mask_BT | others_BT) if self.origins & TRAINED else others_BT
        return _of_sources(mask_BT, batch, self.sources)

    def denominator(self, rows: Sequence[TrainRow]) -> Denominator:
        """Return the denominator of an update on these rows; correction masks do not change it."""
        weights = [row.weight_of(self.mask_of(row)) for row in rows]
        read = [(row, weight) for row, weight in zip(rows, weights, strict=True) if weight > 0]
        groups: dict[int, float] = {}
        for row, weight in read:
            groups[row.id.group] = groups.get(row.id.group, 0.0) + weight
        shares = math.fsum(row.episode_share for row, _ in read)
        return Denominator(tokens=math.fsum(weights), sequences=shares, groups=groups)


def _name(plugin: object) -> str:
    return type(plugin).__name__


def _of_sources(mask_BT: Bool[Tensor, "B T"], batch: MicroBatch, sources: Set[Source]) -> Bool[Tensor, "B T"]:
    if all(row_id.source in sources for row_id in batch.ids.ids):
        return mask_BT
    return mask_BT & _is_one_of(batch.ids.sources_B, [SOURCES.index(source) for source in sources])[:, None]


def _is_one_of(numbers: Tensor, members: Sequence[int]) -> Tensor:
    return reduce(or_, (numbers == number for number in members), torch.zeros_like(numbers, dtype=torch.bool))


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is minimised, as one choice per point.

    Three policies take part: π_behavior sampled, π_old stands in the ratio π/π_old, π learns. With `old_policy:
    recomputed` π_old is π before the step's first update, and the correction goes from π_behavior to it. With
    `rollout` π_old is π_behavior; what the correction rejects, it rejects by π/π_behavior, before each update. Tokens
    that no policy sampled have no π_behavior: their π_old is that of `recomputed`.

    Source: 2110.00641 (three policies).
    """

    loss: PolicyLoss
    """Of the first term, `policy`."""
    correction: Correction
    aggregation: Aggregation = TOKEN_MEAN
    kl_estimator: KlEstimator = k3
    settings: ObjectiveSettings
    temperature: float
    """That the rows were sampled at."""
    sources: frozenset[Source] = SAMPLED
    """Of the rows that the first term reads."""
    policy_coef: Schedule = ONE
    """Of the first term."""
    further: tuple[Term, ...] = ()
    """Terms beside the policy's loss, its KL term and its entropy bonus; those whose coefficient is 0 are left out."""

    def __post_init__(self) -> None:
        """Refuse what would change the loss. Raises: SettingsError: a correction, or an aggregation, that does."""
        if self.is_bypass and not self.correction.only_masks:
            rule = "only reject where objective.old_policy=rollout, as the ratio weighs already"
            got, do = repr(self.correction), "set its weights to none, choose none, or objective.old_policy=recomputed"
            raise SettingsError.of("correction", rule, got, where="objective", do=do)
        readers = [term for term in self.terms if term.is_weighted and term.corrects and term.sources & SAMPLED]
        if not self.correction.is_identity and not readers:
            rule, do = f"be none with a loss that no correction applies to ({_name(self.loss)})", "set correction=none"
            raise SettingsError.of("correction", rule, _name(self.correction), where="objective", do=do)
        for term in self.terms:
            suited = getattr(term.loss, "aggregations", ())
            if suited and isinstance(term.aggregation, SumOverDivisor) and not isinstance(term.aggregation, suited):
                names = " or ".join(kind.__name__ for kind in suited)
                rule, do = f"be {names} for {_name(term.loss)}, whose scale it decides", "set it to token-sum"
                where = f"objective, term {term.name}"
                raise SettingsError.of("aggregation", rule, _name(term.aggregation), where=where, do=do)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """All terms, the policy's loss first."""
        settings, sources, aggregation = self.settings, self.sources, self.aggregation
        terms = [Term(name="policy", loss=self.loss, coef=self.policy_coef, sources=sources, aggregation=aggregation)]
        for name, loss, coef in (
            ("kl_reference", KlToReference(estimator=self.kl_estimator), settings.kl_coef),
            ("entropy_bonus", Entropy(), settings.entropy_coef),
        ):
            if coef:
                terms.append(
                    Term(
                        name=name,
                        loss=loss,
                        coef=Constant(value=coef),
                        sources=sources,
                        aggregation=aggregation,
                        is_weighted=False,
                    )
                )
        return (*terms, *(term for term in self.further if term.coef != NOTHING))

    @cached_property
    def origins(self) -> frozenset[Origin]:
        """Origins of the tokens that its terms read."""
        return frozenset().union(*(term.origins for term in self.terms))

    @property
    def plugins(self) -> dict[str, object]:
        """What it is made of, by a name for each: the parts that may have a state."""
        parts: dict[str, object] = {"correction": self.correction, "kl_estimator": self.kl_estimator}
        for term in self.terms:
            own = {"": term.loss, "-aggregation": term.aggregation, "-coef": term.coef}
            parts |= {f"objective-{term.name}{kind}": part for kind, part in own.items()}
        return parts

    @property
    def is_coupled(self) -> bool:
        """True where a term must be given all rows of an update at once."""
        return any(scope_of(term.loss) == "update" for term in self.terms)

    @cached_property
    def state_prompts(self) -> tuple[str, ...] | None:
        """Prompts under which terms read hidden states, beside those of the rows; None: no term reads any."""
        prompts = [term.loss.state_prompts for term in self.terms if isinstance(term.loss, ReadsStates)]
        return tuple(dict.fromkeys(chain.from_iterable(prompts))) if prompts else None

    @property
    def reads_states(self) -> bool:
        """True where a term reads the rows' hidden states."""
        return self.state_prompts is not None

    @property
    def is_bypass(self) -> bool:
        """True where the old policy is the one that sampled."""
        return self.settings.old_policy == "rollout"

    @cached_property
    def reads_unsampled(self) -> bool:
        """True where a term reads tokens that no policy sampled, such as those of demonstrations."""
        return any(term.sources - SAMPLED or term.origins - TRAINED for term in self.terms)

    @property
    def weighs_samples(self) -> bool:
        """True where a sample counts by how probable it was to what sampled it, which may be another policy."""
        return self.is_bypass or not self.correction.is_identity

    @property
    def without_reference(self) -> "Objective":
        """The same without its KL term, for where no reference is kept."""
        return replace(self, settings=self.settings.model_copy(update={"kl_coef": 0.0}))

    def denominators(self, rows: Sequence[TrainRow]) -> dict[str, Denominator]:
        """Return the denominator of each term, by name, for an update on these rows."""
        return {term.name: term.denominator(rows) for term in self.terms}

    def old_logprobs(
        self,
        logprobs_BT: Float[Tensor, "B T"],
        batch: MicroBatch,
        reference: OpenReference | None,
        reference_logprobs: Callable[[nn.Module], Float[Tensor, "B T"]],
    ) -> "OldLogprobs":
        """Join the policy's log-probs before an update with the reference's and with the correction.

        Args:
            logprobs_BT: [B, T] of the policy, without gradient, nats.
            batch: the rows.
            reference: opens the frozen model; None: there is none.
            reference_logprobs: computes its log-probs of the rows.
        """
        behavior_logprobs_BT = batch.behavior_logprobs_BT.to(logprobs_BT.dtype)
        corrected = self.correction(
            old_logprobs_BT=logprobs_BT,
            behavior_logprobs_BT=behavior_logprobs_BT,
            loss_mask_BT=_of_sources(batch.loss_mask_BT, batch, SAMPLED),
        )
        reference_BT = None
        if reference is not None:
            with reference() as model:
                reference_BT = reference_logprobs(model)
        if self.is_bypass:  # of tokens that no policy sampled, the ratio is to the policy before the update
            sampled_BT = _of_sources(batch.loss_mask_BT, batch, SAMPLED)
            logprobs_BT = torch.where(sampled_BT, behavior_logprobs_BT, logprobs_BT)
        return OldLogprobs(
            logprobs_BT=logprobs_BT,
            reference_logprobs_BT=reference_BT,
            corrected=corrected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OldLogprobs:
    """Log-probs of some rows before an update, nats, padded on the right; 0 at tokens that are not scored."""

    logprobs_BT: Float[Tensor, "B T"]
    """Of the old policy, the denominator of the loss's ratio."""
    reference_logprobs_BT: Float[Tensor, "B T"] | None
    """Of the reference model; None: there is none."""
    corrected: CorrectionResult
    """Of the samples, from the policy that sampled to the policy before the update."""

    def of(self, batch: MicroBatch) -> "OldLogprobs":
        """Return those of a micro-batch's rows."""
        reference_NT = self.reference_logprobs_BT
        return OldLogprobs(
            logprobs_BT=self.logprobs_BT[batch.row_slice],
            reference_logprobs_BT=None if reference_NT is None else reference_NT[batch.row_slice],
            corrected=CorrectionResult(
                weights_BT=self.corrected.weights_BT[batch.row_slice],
                loss_mask_BT=self.corrected.loss_mask_BT[batch.row_slice],
                stats=self.corrected.stats,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveInputs:
    """What the terms read of some rows."""

    scored: TokenLogprobs
    """Log-probs, entropies and, where a term reads them, hidden states of the policy, with gradient."""
    batch: MicroBatch
    old_logprobs: OldLogprobs
    values_BT: Float[Tensor, "B T"] | None = None
    """The critic's before the update; None: there is no critic."""
    step: int
    """Train steps done before."""

    def of_term(self, term: Term, mask_BT: Bool[Tensor, "B T"]) -> LossBatch:
        """Return the inputs of a term's loss."""
        old, batch = self.old_logprobs, self.batch
        reference = {} if old.reference_logprobs_BT is None else {REFERENCE: old.reference_logprobs_BT}
        return LossBatch(
            logprobs_BT=self.scored.logprobs_BT,
            old_logprobs_BT=old.logprobs_BT,
            advantages_BT=batch.advantages_BT,
            loss_mask_BT=mask_BT,
            entropies_BT=self.scored.entropies_BT,
            behavior_logprobs_BT=batch.behavior_logprobs_BT,
            values_BT=self.values_BT,
            weights_BT=batch.weights_BT,
            ids=batch.ids,
            scores={**batch.scores, **reference},
            step=self.step,
            states_BD=self.scored.states_BD,
        )


def objective_loss(
    inputs: ObjectiveInputs,
    objective: Objective,
    *,
    denominators: Mapping[str, Denominator],
    metrics: UpdateMetrics,
    scope: Literal["row", "update"] = "row",
) -> Float[Tensor, ""]:
    """Return these rows' share of the update's loss: the sum of its terms of a scope.

    Args:
        inputs: of the rows.
        objective: what is minimised.
        denominators: of the whole update, by term.
        metrics: the rows are added to them.
        scope: `row`: the terms that may be given any rows; `update`: those that must be given all rows of the update.
    """
    parts = [
        _term_loss(inputs, objective, term, denominator=denominators[term.name], metrics=metrics)
        for term in objective.terms
        if scope_of(term.loss) == scope
    ]
    return torch.stack(parts).sum() if len(parts) > 1 else parts[0] if parts else inputs.scored.logprobs_BT.sum() * 0.0


def _term_loss(
    inputs: ObjectiveInputs, objective: Objective, term: Term, *, denominator: Denominator, metrics: UpdateMetrics
) -> Float[Tensor, ""]:
    batch, corrected = inputs.batch, inputs.old_logprobs.corrected
    read_BT = term.mask(batch)
    sampled_BT = _of_sources(batch.loss_mask_BT, batch, SAMPLED)
    mask_BT = read_BT & (corrected.loss_mask_BT | ~sampled_BT) if term.corrects else read_BT
    loss_batch = inputs.of_term(term, mask_BT)
    result = term.loss(loss_batch)
    coef = None if term.coef == ONE else term.coef(inputs.step)
    losses_BT = result.losses_BT
    if term.is_weighted and term.corrects:
        losses_BT = losses_BT * torch.where(sampled_BT, corrected.weights_BT, 1.0)
    if term is objective.terms[0]:
        stats = result.stats
        if stats is None:
            stats = loss_stats(log_ratio(loss_batch.logprobs_BT, loss_batch.old_logprobs_BT, mask_BT), mask_BT)
        metrics.add_policy(stats, losses_BT, loss_batch.entropies, read_BT, coef=coef)
    else:
        metrics.add_term(term.name, losses_BT, read_BT, coef=1.0 if coef is None else coef)
    metrics.add_sums(term.name, result.sums, read_BT)
    # What the correction rejected adds 0 and goes on counting, in the means over a row as in the denominator.
    value = term.aggregation(
        losses_BT, read_BT, batch.weights_BT, batch.episode_shares_B, denominator=denominator, ids=batch.ids
    )
    return value if coef is None else coef * value
