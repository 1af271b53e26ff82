"""The policy's part of the loss: from log-probs of rows to a micro-batch's share of the update's scalar."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from jaxtyping import Float
from torch import Tensor, nn

from envgym.errors import SettingsError, sentence
from envgym.trainer.batch.rows import MicroBatch, TrainRow
from envgym.trainer.learner.checkpoint import OpenReference
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.methods.corrections import Correction, CorrectionResult
from envgym.trainer.methods.losses import Aggregation, Denominator, KlEstimator, PolicyLoss, TokenMean
from envgym.trainer.methods.losses.base import entropy_bonus
from envgym.trainer.methods.losses.kl import k3, kl_to_reference
from envgym.trainer.metrics.update import UpdateMetrics
from envgym.trainer.settings import ObjectiveSettings

TOKEN_MEAN: Final = TokenMean()


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is minimised, as one choice per point.

    Three policies take part: π_behavior sampled, π_old stands in the ratio π/π_old, π learns. With `old_policy:
    recomputed` π_old is π before the step's first update, and the correction goes from π_behavior to it. With
    `rollout` π_old is π_behavior; what the correction rejects, it rejects by π/π_behavior, before each update.

    Source: 2110.00641 (three policies).
    """

    loss: PolicyLoss
    correction: Correction
    aggregation: Aggregation = TOKEN_MEAN
    kl_estimator: KlEstimator = k3
    settings: ObjectiveSettings
    temperature: float
    """That the rows were sampled at."""

    def __post_init__(self) -> None:
        """Refuse to correct for the sampler twice. Raises: SettingsError: both ratio and weights would."""
        if self.is_bypass and not self.correction.only_masks:
            rule = "only reject where objective.old_policy=rollout, as the ratio weighs already"
            got, do = repr(self.correction), "set its weights to none, choose none, or objective.old_policy=recomputed"
            raise SettingsError(sentence("correction", rule, got, where="objective", do=do))

    @property
    def is_bypass(self) -> bool:
        """True where the old policy is the one that sampled."""
        return self.settings.old_policy == "rollout"

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
            loss_mask_BT=batch.loss_mask_BT,
        )
        reference_BT = None
        if reference is not None:
            with reference() as model:
                reference_BT = reference_logprobs(model)
        return OldLogprobs(
            logprobs_BT=behavior_logprobs_BT if self.is_bypass else logprobs_BT,
            reference_logprobs_BT=reference_BT,
            corrected=corrected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OldLogprobs:
    """Log-probs of some rows before an update, nats, padded on the right; 0 at tokens that do not train."""

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


def policy_loss(
    scored: TokenLogprobs,
    batch: MicroBatch,
    old_logprobs: OldLogprobs,
    objective: Objective,
    *,
    denominator: Denominator,
    metrics: UpdateMetrics,
) -> Float[Tensor, ""]:
    """Return a micro-batch's share of the update's policy loss, with its KL term and entropy bonus.

    Args:
        scored: log-probs and entropies of the policy, with gradient.
        batch: the rows.
        old_logprobs: of the same rows.
        objective: what is minimised.
        denominator: of the whole update.
        metrics: the micro-batch is added to them.
    """
    settings, corrected = objective.settings, old_logprobs.corrected
    logprobs_BT, entropies_BT = scored.logprobs_BT, scored.entropies_BT
    assert entropies_BT is not None, "the caller computes entropies"
    token_loss = objective.loss(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=old_logprobs.logprobs_BT,
        advantages_BT=batch.advantages_BT,
        loss_mask_BT=corrected.loss_mask_BT,
    )
    losses_BT = token_loss.losses_BT * corrected.weights_BT
    mask_BT = corrected.loss_mask_BT
    metrics.add_policy(token_loss.stats, losses_BT, entropies_BT, batch.loss_mask_BT)
    if old_logprobs.reference_logprobs_BT is not None:
        reference_BT = old_logprobs.reference_logprobs_BT
        kl_BT = kl_to_reference(logprobs_BT, reference_BT, mask_BT, estimator=objective.kl_estimator)
        metrics.add_kl(kl_BT)
        losses_BT = losses_BT + settings.kl_coef * kl_BT
    if settings.entropy_coef:
        losses_BT = losses_BT + settings.entropy_coef * entropy_bonus(entropies_BT, mask_BT)
    # What the correction rejected adds 0 and goes on counting, in the means over a row as in the denominator.
    return objective.aggregation(
        losses_BT, batch.loss_mask_BT, batch.weights_BT, batch.episode_shares_B, denominator=denominator
    )


def denominator_of_rows(rows: Sequence[TrainRow]) -> Denominator:
    """Return the denominator of an update; correction masks do not change it."""
    weights = [row.trained_weight for row in rows]
    shares = [row.episode_share for row, weight in zip(rows, weights, strict=True) if weight > 0]
    return Denominator(tokens=math.fsum(weights), sequences=math.fsum(shares))
