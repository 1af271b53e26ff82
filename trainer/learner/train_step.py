"""The loss of one train step: what its updates read, computed before the first of them, and the loss of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from envgym.trainer.batch.rows import MicroBatch, TrainRow, pad
from envgym.trainer.learner.coupled import CoupledGradient, coupled_gradient
from envgym.trainer.learner.critic import PaddedValueTargets, supervised_tokens
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.learner.objective import Objective, ObjectiveInputs, OldLogprobs, objective_loss
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.methods.corrections import CorrectionStats
from envgym.trainer.methods.losses import Denominator
from envgym.trainer.metrics.update import Metrics, UpdateMetrics, correction_metrics
from envgym.trainer.sections import OptimSettings

if TYPE_CHECKING:
    from envgym.trainer.learner.learner import Learner

LossFn = Callable[[MicroBatch], Float[Tensor, ""]]
"""Returns a micro-batch's share of the loss of its update, with gradient."""
SamplesCheck = Callable[[CorrectionStats], None]
"""Raises where the log-prob gap of some samples, from the sampler to the learner, is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What every update of one train step reads."""

    learner: "Learner"
    rows: Sequence[TrainRow]
    objective: Objective
    old_logprobs: OldLogprobs | None
    """Of all rows; None: they are taken from the pass that computes the gradient."""
    value_targets: PaddedValueTargets | None
    """None: there is no critic, or nothing that it could learn."""
    metrics: UpdateMetrics
    step: int
    """Train steps done before."""
    record: TokenRecord | None = None
    """Takes down the numbers of every token; None: nobody asks for them."""

    @classmethod
    def compute(
        cls,
        learner: "Learner",
        rows: Sequence[TrainRow],
        objective: Objective,
        *,
        with_old_logprobs: bool,
        step: int,
        record: TokenRecord | None = None,
    ) -> "StepInputs":
        """Pad the value targets, and compute old log-probs where they need a pass of their own."""
        value_targets = None
        if learner.critic is not None and any(row.supervised for row in rows):
            value_targets = PaddedValueTargets.of_rows(rows, dtype=learner.forward.dtype, device=learner.device)
        return cls(
            learner=learner,
            rows=rows,
            objective=objective,
            old_logprobs=_old_logprobs_of_rows(learner, rows, objective) if with_old_logprobs else None,
            value_targets=value_targets,
            metrics=UpdateMetrics(),
            step=step,
            record=record,
        )

    def means(self) -> Metrics:
        """Return the metrics of the updates, means over trained tokens."""
        metrics = self.learner.processes.metrics_of_all(self.metrics)
        correction = self._correction(metrics)
        return {
            **metrics.means(),
            **({} if correction is None else correction_metrics(correction)),
            **({} if self.value_targets is None else self.value_targets.metrics()),
        }

    def then_check(self, batches: Iterable[MicroBatch], check_samples: SamplesCheck | None) -> Iterator[MicroBatch]:
        """Yield the micro-batches of an update, and check the samples when their gradient is there."""
        yield from batches
        if check_samples is not None:
            correction = self._correction(self.learner.processes.metrics_of_all(self.metrics))
            if correction is not None:
                check_samples(correction)

    def loss_fn(self, chosen: Sequence[int]) -> LossFn:
        """Return the loss of an update on the chosen rows: the policy's, and the critic's where there is one."""
        rows = [self.rows[number] for number in chosen]
        learner, objective, metrics = self.learner, self.objective, self.metrics
        denominators = objective.denominators(rows)
        value_denominator = supervised_tokens(rows)
        coupled = self._coupled_gradient(chosen, denominators) if objective.is_coupled else None

        def loss_fn(batch: MicroBatch) -> Float[Tensor, ""]:
            before = batch.state_mask_BT if objective.reads_states else None
            with learner.forward.mode():
                states = learner.forward.hidden_states(batch)
                scored = states.logprobs(temperature=objective.temperature, with_entropy=True, states_before=before)
            if self.old_logprobs is None:
                old_logprobs = _old_logprobs_of_pass(learner, scored, batch, objective)
                metrics.add_correction(old_logprobs.corrected.stats)
            else:
                old_logprobs = self.old_logprobs.of(batch)
            if self.record is not None:
                self.record.add(
                    batch,
                    logprobs_BT=scored.logprobs_BT,
                    entropies_BT=scored.entropies_BT,
                    old_logprobs_BT=old_logprobs.logprobs_BT,
                    learner_logprobs_BT=scored.logprobs_BT if objective.is_bypass else old_logprobs.logprobs_BT,
                )
            inputs = self._inputs_of(batch, scored, old_logprobs)
            loss = objective_loss(inputs, objective, denominators=denominators, metrics=metrics)
            if coupled is not None:
                loss = loss + coupled.of(batch, scored)
            if learner.critic is not None and self.value_targets is not None:
                loss = loss + learner.critic.loss(
                    states, batch, self.value_targets, denominator=value_denominator, metrics=metrics
                )
            return loss

        return loss_fn

    def _correction(self, metrics: UpdateMetrics) -> CorrectionStats | None:
        """Return the correction so far; None: no row has been read."""
        return metrics.correction if self.old_logprobs is None else self.old_logprobs.corrected.stats

    def _inputs_of(self, batch: MicroBatch, scored: TokenLogprobs, old_logprobs: OldLogprobs) -> ObjectiveInputs:
        """Return what the objective reads of some rows."""
        values_BT = None if self.value_targets is None else self.value_targets.values_NT[batch.row_slice]
        return ObjectiveInputs(
            scored=scored, batch=batch, old_logprobs=old_logprobs, values_BT=values_BT, step=self.step
        )

    def _coupled_gradient(self, chosen: Sequence[int], denominators: Mapping[str, Denominator]) -> CoupledGradient:
        """Differentiate the terms that couple rows, given all rows of an update; one process adds their metrics."""
        old_logprobs, objective = self.old_logprobs, self.objective
        assert old_logprobs is not None, "a coupled objective computes old log-probs in a pass of their own"
        metrics = self.metrics if self.learner.processes.is_first else UpdateMetrics()

        def loss_fn(whole: MicroBatch, scored: TokenLogprobs) -> Float[Tensor, ""]:
            read = self._inputs_of(whole, scored, old_logprobs.of(whole))
            return objective_loss(read, objective, denominators=denominators, metrics=metrics, scope="update")

        return coupled_gradient(
            self.learner.forward,
            self.rows,
            chosen,
            loss_fn,
            temperature=objective.temperature,
            with_states=objective.reads_states,
        )


def _old_logprobs_of_rows(learner: "Learner", rows: Sequence[TrainRow], objective: Objective) -> OldLogprobs:
    """Compute old and reference log-probs of every row in passes of their own."""
    # In the packs of the updates, so that every ratio of the first epoch is exactly 1.
    batches = [
        batch
        for chosen in minibatches(rows, learner.optim.minibatches, whole_groups=objective.is_coupled)
        for batch in learner.micro_batches(rows, chosen)
    ]

    def logprobs_of(model: nn.Module | None) -> Float[Tensor, "N T"]:
        return learner.forward.logprobs(rows, batches, objective.temperature, model)

    whole = pad(rows, range(len(rows)), learner.device)
    return objective.old_logprobs(logprobs_of(None), whole, learner.reference, logprobs_of)


def _old_logprobs_of_pass(
    learner: "Learner", scored: TokenLogprobs, batch: MicroBatch, objective: Objective
) -> OldLogprobs:
    """Take the old log-probs of a micro-batch from the pass that computes its gradient."""

    def reference_logprobs(model: nn.Module) -> Float[Tensor, "B T"]:
        with learner.forward.mode(), torch.no_grad():
            states = learner.forward.hidden_states(batch, model)
            return states.logprobs(temperature=objective.temperature).logprobs_BT

    return objective.old_logprobs(scored.logprobs_BT.detach(), batch, learner.reference, reference_logprobs)


def needs_old_logprobs_pass(optim: OptimSettings, objective: Objective) -> bool:
    """Return whether a train step computes old log-probs in a pass of their own, before its first update.

    It must where a term couples rows. It need not where the old policy is the one that sampled, nor where it is the one
    that learns: in a single update without a correction.
    """
    is_single = optim.epochs * optim.minibatches == 1
    return objective.is_coupled or (not objective.is_bypass and not (is_single and objective.correction.is_identity))


def minibatches(rows: Sequence[TrainRow], parts: int, *, whole_groups: bool = False) -> list[Sequence[int]]:
    """Deal rows into minibatches by turns: row by row, so that neighbours part, or group by group."""
    if not whole_groups:
        return [range(part, len(rows), parts) for part in range(min(parts, len(rows)))]
    order = {group: place for place, group in enumerate(dict.fromkeys(row.id.group for row in rows))}
    dealt = (
        [number for number, row in enumerate(rows) if order[row.id.group] % parts == part] for part in range(parts)
    )
    return [chosen for chosen in dealt if chosen]
