"""The learner: a model, an optimizer, and one exact update from rows of numbers.

An update's gradient does not depend on how its rows are dealt into micro-batches: every sum is divided by the
denominator of the whole update. The learner knows no environments, no episodes and no sampling.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from envgym.errors import InvalidInput, sentence
from envgym.trainer.batch.rows import MicroBatch, TrainRow, first_states, pad
from envgym.trainer.learner.checkpoint import OpenReference
from envgym.trainer.learner.coupled import CoupledGradient, coupled_gradient
from envgym.trainer.learner.critic import Critic, PaddedValueTargets, supervised_tokens
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.learner.memory import explain_out_of_memory
from envgym.trainer.learner.objective import Objective, ObjectiveInputs, OldLogprobs, objective_loss
from envgym.trainer.learner.processes import ONE_PROCESS, OneProcess
from envgym.trainer.methods.corrections import CorrectionStats
from envgym.trainer.methods.losses import Denominator
from envgym.trainer.metrics.update import Metrics, UpdateMetrics, correction_metrics
from envgym.trainer.sections import OptimSettings

LossFn = Callable[[MicroBatch], Float[Tensor, ""]]
"""Returns a micro-batch's share of the loss of its update, with gradient."""
SamplesCheck = Callable[[CorrectionStats], None]
"""Raises where the log-prob gap of some samples, from the sampler to the learner, is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepInputs:
    """What every update of one train step reads."""

    rows: Sequence[TrainRow]
    objective: Objective
    old_logprobs: OldLogprobs | None
    """Of all rows; None: they are taken from the pass that computes the gradient."""
    value_targets: PaddedValueTargets | None
    """None: there is no critic, or nothing that it could learn."""
    metrics: UpdateMetrics
    step: int
    """Train steps done before."""

    processes: OneProcess
    """That learn together."""

    def correction(self, metrics: UpdateMetrics) -> CorrectionStats | None:
        """Return the correction so far; None: no row has been read."""
        return metrics.correction if self.old_logprobs is None else self.old_logprobs.corrected.stats

    def means(self) -> Metrics:
        """Return the metrics of the updates, means over trained tokens."""
        metrics = self.processes.metrics_of_all(self.metrics)
        correction = self.correction(metrics)
        return {
            **metrics.means(),
            **({} if correction is None else correction_metrics(correction)),
            **({} if self.value_targets is None else self.value_targets.metrics()),
        }

    def then_check(self, batches: Iterable[MicroBatch], check_samples: SamplesCheck | None) -> Iterator[MicroBatch]:
        """Yield the micro-batches of an update, and check the samples when their gradient is there."""
        yield from batches
        if check_samples is not None:
            correction = self.correction(self.processes.metrics_of_all(self.metrics))
            if correction is not None:
                check_samples(correction)

    def of(self, batch: MicroBatch, scored: TokenLogprobs, old_logprobs: OldLogprobs) -> ObjectiveInputs:
        """Return what the objective reads of some rows."""
        values_BT = None if self.value_targets is None else self.value_targets.values_NT[batch.row_slice]
        return ObjectiveInputs(
            scored=scored, batch=batch, old_logprobs=old_logprobs, values_BT=values_BT, step=self.step
        )

    def coupled_gradient(
        self,
        forward: ForwardPass,
        chosen: Sequence[int],
        denominators: Mapping[str, Denominator],
        metrics: UpdateMetrics,
    ) -> CoupledGradient:
        """Differentiate the terms that couple rows, given all rows of an update, which are added to the metrics."""
        old_logprobs, objective = self.old_logprobs, self.objective
        assert old_logprobs is not None, "a coupled objective computes old log-probs in a pass of their own"

        def loss_fn(whole: MicroBatch, scored: TokenLogprobs) -> Float[Tensor, ""]:
            read = self.of(whole, scored, old_logprobs.of(whole))
            return objective_loss(read, objective, denominators=denominators, metrics=metrics, scope="update")

        return coupled_gradient(
            forward,
            self.rows,
            chosen,
            loss_fn,
            temperature=objective.temperature,
            with_states=objective.reads_states,
        )


class Learner:
    """Trains one model, and the critic on it where there is one, in one process."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optim: OptimSettings,
        num_steps: int,
        device: torch.device,
        autocast: torch.dtype | None = None,
        critic: Critic | None = None,
        reference: OpenReference | None = None,
        rates: Sequence[str] = ("optim.lr",),
        processes: OneProcess = ONE_PROCESS,
    ) -> None:
        """Take over the model's trainable parameters.

        Args:
            model: a Hugging Face causal language model, plain or wrapped by peft.
            optim: AdamW and its schedule.
            num_steps: train steps over which the learning rate decays.
            device: where the model is.
            autocast: dtype of the matrix products; None = that of the weights.
            critic: on this model; None = there is none.
            reference: opens the frozen model of the KL term; None = there is none.
            rates: the settings of its learning rates, the critic's among them: what to lower where numbers overflow.
            processes: that learn together.
        """
        self.model, self.optim, self.device, self.autocast = model, optim, device, autocast
        self.critic, self.reference, self.rates = critic, reference, rates
        # Where there are several, this leaves a shard of the model here.
        self.forward = processes.forward_pass(model, optim, device=device, autocast=autocast)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = adamw(model, optim)
        self._num_steps, self._processes = num_steps, processes

    # ---- train steps ---------------------------------------------------------------------------------------------

    def train_step(
        self, rows: Sequence[TrainRow], objective: Objective, *, step: int, check_samples: SamplesCheck | None = None
    ) -> Metrics:
        """Run the updates of one train step on `rows` and return their metrics, means over trained tokens.

        `check_samples` is given the log-prob gap of sampler and learner before the first update is applied.

        Raises: InvalidInput: the loss or the gradient is not finite. The update is not made; those before it are.
        """
        rows = _with_first_states(rows, objective)
        rate = self.optim.lr * schedule(self.optim, step, self._num_steps)
        set_learning_rate(self.optimizer, rate)
        inputs = self._step_inputs(
            rows, objective, with_old_logprobs=needs_old_logprobs_pass(self.optim, objective), step=step
        )
        norms: list[float] = []
        for _ in range(self.optim.epochs):
            for chosen in minibatches(rows, self.optim.minibatches, whole_groups=objective.is_coupled):
                batches = inputs.then_check(self.micro_batches(rows, chosen), None if norms else check_samples)
                norms.append(self.update(batches, self._loss_fn(inputs, chosen)))
        return {
            **inputs.means(),
            "optim/grad_norm": sum(norms) / max(len(norms), 1),
            "optim/lr": rate,
            "optim/updates": float(len(norms)),
        }

    def update(self, micro_batches: Iterable[MicroBatch], loss_fn: LossFn) -> float:
        """Accumulate the gradient of one update, clip it, and step every optimizer; return the policy's gradient norm.

        Args:
            micro_batches: of the whole update.
            loss_fn: the losses of the micro-batches add up to that of the update.

        Raises: InvalidInput: the loss or the gradient is not finite; nothing is updated then. RunError: a micro-batch
        does not fit the device's memory.
        """
        self.zero_grad()
        losses: list[Tensor] = []
        for batch in micro_batches:
            with explain_out_of_memory(batch, self.optim, self.device):
                loss = loss_fn(batch)
                loss.backward()
            losses.append(loss.detach())
        # Read once, when all are under way: reading a number waits for the device.
        if wrong := [loss for loss in self._processes.read(losses) if not math.isfinite(loss)]:
            self.zero_grad()
            raise not_finite("loss", wrong[0], self.rates)
        norm = norm_of_all = self._processes.clip_gradient(self.parameters, self.optim.grad_clip)
        if self.critic is not None:
            self._processes.sum_gradients(list(self.critic.head.parameters()))
            norm_of_all = math.hypot(norm, self.critic.clip_gradient())
        if not math.isfinite(norm_of_all):
            self.zero_grad()
            raise not_finite("gradient norm", norm_of_all, self.rates)
        self.optimizer.step()
        if self.critic is not None:
            self.critic.optimizer.step()
        self.zero_grad()
        return norm

    def backward_largest_micro_batch(self, rows: Sequence[TrainRow], objective: Objective) -> int:
        """Accumulate the gradient of the micro-batch that needs the most memory; return its number of tokens.

        Nothing is updated; the caller drops the gradient (`zero_grad`) or reads it.
        """
        rows = _with_first_states(rows, objective)
        everything = range(len(rows))
        inputs = self._step_inputs(rows, objective, with_old_logprobs=objective.is_coupled, step=0)
        batch = max(self.micro_batches(rows, everything), key=lambda batch: batch.num_tokens)
        self._loss_fn(inputs, everything)(batch).backward()
        return batch.num_tokens

    def zero_grad(self) -> None:
        """Drop the accumulated gradient of model and critic."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.critic is not None:
            self.critic.optimizer.zero_grad(set_to_none=True)

    # ---- numbers of rows, without gradient -----------------------------------------------------------------------

    def micro_batches(self, rows: Sequence[TrainRow], chosen: Sequence[int]) -> list[MicroBatch]:
        """Deal the chosen rows into micro-batches: with each shared prefix once where the model can, else padded."""
        return self.forward.micro_batches(rows, chosen)

    def compute_logprobs(self, rows: Sequence[TrainRow], temperature: float) -> Float[Tensor, "N T"]:
        """Return the log-probs of the trained tokens of every row under the present weights, nats; 0 elsewhere."""
        return self.forward.logprobs(rows, self.micro_batches(rows, range(len(rows))), temperature)

    def compute_values(self, rows: Sequence[TrainRow], batches: Sequence[MicroBatch]) -> Float[Tensor, "N T"]:
        """Return the critic's value before each trained token of every row; 0 elsewhere."""
        assert self.critic is not None, "values are computed only where the credit reads them"
        return self.forward.apply_head(rows, batches, self.critic.values)

    # ---- the loss of a train step --------------------------------------------------------------------------------

    def _step_inputs(
        self, rows: Sequence[TrainRow], objective: Objective, *, with_old_logprobs: bool, step: int
    ) -> _StepInputs:
        value_targets = None
        if self.critic is not None and any(row.supervised for row in rows):
            value_targets = PaddedValueTargets.of_rows(rows, dtype=self.forward.dtype, device=self.device)
        return _StepInputs(
            rows=rows,
            objective=objective,
            old_logprobs=self._old_logprobs_of_rows(rows, objective) if with_old_logprobs else None,
            value_targets=value_targets,
            metrics=UpdateMetrics(),
            step=step,
            processes=self._processes,
        )

    def _loss_fn(self, inputs: _StepInputs, chosen: Sequence[int]) -> LossFn:
        """Return the loss of an update on the chosen rows: the policy's, and the critic's where there is one."""
        rows = [inputs.rows[number] for number in chosen]
        objective, metrics = inputs.objective, inputs.metrics
        denominators = objective.denominators(rows)
        value_denominator = supervised_tokens(rows)
        coupled = None
        if objective.is_coupled:
            counted = metrics if self._processes.is_first else UpdateMetrics()
            coupled = inputs.coupled_gradient(self.forward, chosen, denominators, counted)

        def loss_fn(batch: MicroBatch) -> Float[Tensor, ""]:
            before = batch.state_mask_BT if objective.reads_states else None
            with self.forward.mode():
                states = self.forward.hidden_states(batch)
                scored = states.logprobs(temperature=objective.temperature, with_entropy=True, states_before=before)
            if inputs.old_logprobs is None:
                old_logprobs = _old_logprobs_of_pass(self, scored, batch, objective)
                metrics.add_correction(old_logprobs.corrected.stats)
            else:
                old_logprobs = inputs.old_logprobs.of(batch)
            loss = objective_loss(
                inputs.of(batch, scored, old_logprobs), objective, denominators=denominators, metrics=metrics
            )
            if coupled is not None:
                loss = loss + coupled.of(batch, scored)
            if self.critic is not None and inputs.value_targets is not None:
                loss = loss + self.critic.loss(
                    states, batch, inputs.value_targets, denominator=value_denominator, metrics=metrics
                )
            return loss

        return loss_fn

    def _old_logprobs_of_rows(self, rows: Sequence[TrainRow], objective: Objective) -> OldLogprobs:
        """Compute old and reference log-probs of every row in passes of their own."""
        # In the packs of the updates, so that every ratio of the first epoch is exactly 1.
        batches = [
            batch
            for chosen in minibatches(rows, self.optim.minibatches, whole_groups=objective.is_coupled)
            for batch in self.micro_batches(rows, chosen)
        ]

        def logprobs_of(model: nn.Module | None) -> Float[Tensor, "N T"]:
            return self.forward.logprobs(rows, batches, objective.temperature, model)

        whole = pad(rows, range(len(rows)), self.device)
        return objective.old_logprobs(logprobs_of(None), whole, self.reference, logprobs_of)


def _old_logprobs_of_pass(
    learner: Learner, scored: TokenLogprobs, batch: MicroBatch, objective: Objective
) -> OldLogprobs:
    """Take the old log-probs of a micro-batch from the pass that computes its gradient."""

    def reference_logprobs(model: nn.Module) -> Float[Tensor, "B T"]:
        with learner.forward.mode(), torch.no_grad():
            states = learner.forward.hidden_states(batch, model)
            return states.logprobs(temperature=objective.temperature).logprobs_BT

    return objective.old_logprobs(scored.logprobs_BT.detach(), batch, learner.reference, reference_logprobs)


def not_finite(what: str, value: float, rates: Sequence[str]) -> InvalidInput:
    """Return the error of an update whose loss or gradient is not finite.

    Args:
        what: of the two.
        value: its value.
        rates: the settings of the learning rates to lower.
    """
    do = f"lower {' or '.join(rates)}, or look at the rows with --dry-run"
    return InvalidInput(sentence(what, "be finite", value, where="learner", do=do))


def needs_old_logprobs_pass(optim: OptimSettings, objective: Objective) -> bool:
    """Return whether a train step computes old log-probs in a pass of their own, before its first update.

    It must where a term couples rows. It need not where the old policy is the one that sampled, nor where it is the one
    that learns: in a single update without a correction.
    """
    is_single = optim.epochs * optim.minibatches == 1
    return objective.is_coupled or (not objective.is_bypass and not (is_single and objective.correction.is_identity))


def adamw(model: nn.Module, optim: OptimSettings) -> torch.optim.AdamW:
    """Build AdamW over the trainable parameters; vectors (norms, biases) do not decay."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True
    )


def schedule(optim: OptimSettings, step: int, num_steps: int) -> float:
    """Return the factor on the learning rate at `step` (from 0): a linear warmup, then the decay."""
    if step < optim.warmup_steps:
        return (step + 1) / (optim.warmup_steps + 1)
    left = max(num_steps - optim.warmup_steps, 1)
    share = min(max(step - optim.warmup_steps, 0) / left, 1.0)
    match optim.decay:
        case "linear":
            return 1.0 - share
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * share))
        case "constant":
            return 1.0


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def _with_first_states(rows: Sequence[TrainRow], objective: Objective) -> Sequence[TrainRow]:
    """Return the rows of a step, and those that show first states under the prompts that the objective reads."""
    return [*rows, *first_states(rows, objective.state_prompts)] if objective.state_prompts else rows


def minibatches(rows: Sequence[TrainRow], parts: int, *, whole_groups: bool = False) -> list[Sequence[int]]:
    """Deal rows into minibatches by turns: row by row, so that neighbours part, or group by group."""
    if not whole_groups:
        return [range(part, len(rows), parts) for part in range(min(parts, len(rows)))]
    order = {group: place for place, group in enumerate(dict.fromkeys(row.id.group for row in rows))}
    dealt = (
        [number for number, row in enumerate(rows) if order[row.id.group] % parts == part] for part in range(parts)
    )
    return [chosen for chosen in dealt if chosen]
