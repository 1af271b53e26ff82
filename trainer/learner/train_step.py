"""The loss of one train step: what its updates read, computed before the first of them, and the loss of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from envgym.trainer.batch.rows import MicroBatch, TrainRow, first_states, pad
from envgym.trainer.learner.checkpoint import OpenReference
from envgym.trainer.learner.coupled import CoupledGradient, coupled_gradient
from envgym.trainer.learner.critic import Critic, PaddedValueTargets, supervised_tokens
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.learner.objective import Objective, ObjectiveInputs, OldLogprobs, objective_loss
from envgym.trainer.learner.processes import ONE_PROCESS, OneProcess
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.methods.corrections import CorrectionStats
from envgym.trainer.methods.losses import Denominator
from envgym.trainer.metrics.update import Metrics, UpdateMetrics, correction_metrics

LossFn = Callable[[MicroBatch], Float[Tensor, ""]]
"""Returns a micro-batch's share of the loss of its update, with gradient."""
SamplesCheck = Callable[[CorrectionStats], None]
"""Raises where the log-prob gap of some samples, from the sampler to the learner, is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What every update of one train step reads."""

    rows: Sequence[TrainRow]
    """Those of the step, and those that show first states under the prompts that the objective reads."""
    objective: Objective
    forward: ForwardPass
    """Of the model that learns."""
    critic: Critic | None
    reference: OpenReference | None
    """Opens the frozen model of the KL term; None: there is no such term."""
    processes: OneProcess
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
        rows: Sequence[TrainRow],
        objective: Objective,
        *,
        forward: ForwardPass,
        critic: Critic | None,
        reference: OpenReference | None,
        processes: OneProcess = ONE_PROCESS,
        num_minibatches: int | None,
        step: int,
        record: TokenRecord | None = None,
    ) -> "StepInputs":
        """Add the rows of first states, pad the value targets, and compute old log-probs in passes of their own.

        `num_minibatches` is the number of updates in an epoch, whose micro-batches these passes repeat. None: the old
        log-probs are taken from the pass that computes the gradient.
        """
        if objective.state_prompts:
            rows = [*rows, *first_states(rows, objective.state_prompts)]
        value_targets = old_logprobs = None
        if critic is not None and any(row.supervised for row in rows):
            value_targets = PaddedValueTargets.of_rows(rows, dtype=forward.dtype, device=forward.device)
        if num_minibatches is not None:
            old_logprobs = _old_logprobs_of_rows(forward, rows, objective, reference, num_minibatches)
        return cls(
            rows=rows,
            objective=objective,
            forward=forward,
            critic=critic,
            reference=reference,
            processes=processes,
            old_logprobs=old_logprobs,
            value_targets=value_targets,
            metrics=UpdateMetrics(),
            step=step,
            record=record,
        )

    def means(self) -> Metrics:
        """Return the metrics of the updates, means over trained tokens."""
        metrics = self.processes.metrics_of_all(self.metrics)
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
            correction = self._correction(self.processes.metrics_of_all(self.metrics))
            if correction is not None:
                check_samples(correction)

    def loss_fn(self, indices: Sequence[int]) -> LossFn:
        """Return the loss of an update on the chosen rows: the policy's, and the critic's where there is one."""
        rows = [self.rows[number] for number in indices]
        forward, objective, metrics = self.forward, self.objective, self.metrics
        denominators = objective.denominators(rows)
        value_denominator = supervised_tokens(rows)
        coupled = self._coupled_gradient(indices, denominators) if objective.is_coupled else None

        def loss_fn(batch: MicroBatch) -> Float[Tensor, ""]:
            before = batch.state_mask_BT if objective.reads_states else None
            with forward.mode():
                states = forward.hidden_states(batch)
                scored = states.logprobs(temperature=objective.temperature, with_entropy=True, states_before=before)
            if self.old_logprobs is None:
                old_logprobs = _old_logprobs_of_pass(forward, scored, batch, objective, self.reference)
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
            if self.critic is not None and self.value_targets is not None:
                loss = loss + self.critic.loss(
                    states, batch, self.value_targets, denominator=value_denominator, metrics=metrics
                )
            return loss

        return loss_fn

    def _correction(self, metrics: UpdateMetrics) -> CorrectionStats | None:
        return metrics.correction if self.old_logprobs is None else self.old_logprobs.corrected.stats

    def _inputs_of(self, batch: MicroBatch, scored: TokenLogprobs, old_logprobs: OldLogprobs) -> ObjectiveInputs:
        values_BT = None if self.value_targets is None else self.value_targets.values_NT[batch.row_slice]
        return ObjectiveInputs(
            scored=scored, batch=batch, old_logprobs=old_logprobs, values_BT=values_BT, step=self.step
        )

    def _coupled_gradient(self, indices: Sequence[int], denominators: Mapping[str, Denominator]) -> CoupledGradient:
        """Differentiate the terms that couple rows, given all rows of an update; one process adds their metrics."""
        old_logprobs, objective = self.old_logprobs, self.objective
        assert old_logprobs is not None, "a coupled objective computes old log-probs in a pass of their own"
        metrics = self.metrics if self.processes.is_first else UpdateMetrics()

        def loss_fn(whole: MicroBatch, scored: TokenLogprobs) -> Float[Tensor, ""]:
            read = self._inputs_of(whole, scored, old_logprobs.of(whole))
            return objective_loss(read, objective, denominators=denominators, metrics=metrics, scope="update")

        return coupled_gradient(
            self.forward,
            self.rows,
            indices,
            loss_fn,
            temperature=objective.temperature,
            with_states=objective.reads_states,
        )


def _old_logprobs_of_rows(
    forward: ForwardPass,
    rows: Sequence[TrainRow],
    objective: Objective,
    reference: OpenReference | None,
    num_minibatches: int,
) -> OldLogprobs:
    """Compute old and reference log-probs of every row in passes of their own."""
    # In the packs of the updates, so that every ratio of the first epoch is exactly 1.
    batches = [
        batch
        for indices in minibatches(rows, num_minibatches, whole_groups=objective.is_coupled)
        for batch in forward.micro_batches(rows, indices)
    ]

    def logprobs_of(model: nn.Module | None) -> Float[Tensor, "N T"]:
        return forward.logprobs(rows, batches, objective.temperature, model)

    whole = pad(rows, range(len(rows)), forward.device)
    return objective.old_logprobs(logprobs_of(None), whole, reference, logprobs_of)


def _old_logprobs_of_pass(
    forward: ForwardPass,
    scored: TokenLogprobs,
    batch: MicroBatch,
    objective: Objective,
    reference: OpenReference | None,
) -> OldLogprobs:
    """Take the old log-probs of a micro-batch from the pass that computes its gradient."""

    def reference_logprobs(model: nn.Module) -> Float[Tensor, "B T"]:
        with forward.mode(), torch.no_grad():
            states = forward.hidden_states(batch, model)
            return states.logprobs(temperature=objective.temperature).logprobs_BT

    return objective.old_logprobs(scored.logprobs_BT.detach(), batch, reference, reference_logprobs)


def needs_old_logprobs_pass(optim: OptimSettings, objective: Objective) -> bool:
    """Return whether a train step computes old log-probs in a pass of their own, before its first update.

    It must where a term couples rows. It need not where the old policy is the one that sampled, nor where it is the one
    that learns: in a single update without a correction. Of tokens that no policy sampled it is never the former.
    """
    is_single = optim.epochs * optim.minibatches == 1
    if objective.is_bypass:
        return objective.is_coupled or (objective.reads_unsampled and not is_single)
    return objective.is_coupled or not (is_single and objective.correction.is_identity)


FORWARD_SHARE: Final = 1 / 3
"""Of the time of forward and backward together: a backward pass costs twice its forward pass."""


def learning_passes(optim: OptimSettings, objective: Objective) -> float:
    """Return the passes of a train step over its rows, forward and backward; one without gradient is a share of it."""
    has_old = needs_old_logprobs_pass(optim, objective)
    references = bool(objective.settings.kl_coef) * (1 if has_old else optim.epochs)
    return optim.epochs + (has_old + references) * FORWARD_SHARE


def minibatches(rows: Sequence[TrainRow], parts: int, *, whole_groups: bool = False) -> list[Sequence[int]]:
    """Deal rows into minibatches by turns: row by row, so that neighbours part, or group by group."""
    if not whole_groups:
        return [range(part, len(rows), parts) for part in range(min(parts, len(rows)))]
    order = {group: place for place, group in enumerate(dict.fromkeys(row.id.group for row in rows))}
    dealt = (
        [number for number, row in enumerate(rows) if order[row.id.group] % parts == part] for part in range(parts)
    )
    return [indices for indices in dealt if indices]
