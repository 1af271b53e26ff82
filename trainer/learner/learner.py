"""The learner: a model, an optimizer, and one exact update from rows of numbers.

An update's gradient does not depend on how its rows are dealt into micro-batches: every sum is divided by the
denominator of the whole update. The learner knows no environments, no episodes and no sampling.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from envgym.agents.models.weights import merged_weights
from envgym.errors import InvalidInput, sentence
from envgym.trainer.batch.rows import MicroBatch, TrainRow
from envgym.trainer.learner.checkpoint import (
    OpenReference,
    load_critic,
    load_optimizer,
    save_critic,
    save_optimizer,
    write_model,
)
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.learner.memory import explain_out_of_memory
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.optimizers.base import build_optimizer
from envgym.trainer.learner.processes import ONE_PROCESS, OneProcess
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.learner.train_step import LossFn, SamplesCheck, StepInputs, minibatches, needs_old_logprobs_pass
from envgym.trainer.metrics.update import Metrics

Pause = Callable[[], AbstractContextManager[None]]
"""Holds sampling off for a block."""


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
            optim: the optimizer and its schedule.
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
        if optim.compile_layers:
            self.forward.compile_layers()
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = build_optimizer(model, optim)
        self.processes, self.num_steps = processes, num_steps

    # ---- train steps ---------------------------------------------------------------------------------------------

    def train_step(
        self,
        rows: Sequence[TrainRow],
        objective: Objective,
        *,
        step: int,
        check_samples: SamplesCheck | None = None,
        record: TokenRecord | None = None,
    ) -> Metrics:
        """Run the updates of one train step on `rows` and return their metrics, means over trained tokens.

        `check_samples` is given the log-prob gap of sampler and learner before the first update is applied; `record`
        takes down what was computed of every token.

        Raises: InvalidInput: the loss or the gradient is not finite. The update is not made; those before it are.
        """
        rate = self.optim.lr * schedule(self.optim, step, self.num_steps)
        set_learning_rate(self.optimizer, rate)
        inputs = StepInputs.compute(
            rows,
            objective,
            forward=self.forward,
            critic=self.critic,
            reference=self.reference,
            processes=self.processes,
            num_minibatches=self.optim.minibatches if needs_old_logprobs_pass(self.optim, objective) else None,
            step=step,
            record=record,
        )
        norms: list[float] = []
        for _ in range(self.optim.epochs):
            for indices in minibatches(inputs.rows, self.optim.minibatches, whole_groups=objective.is_coupled):
                batches = inputs.then_check(self.micro_batches(inputs.rows, indices), None if norms else check_samples)
                norms.append(self.update(batches, inputs.loss_fn(indices)))
        if record is not None:
            self.processes.complete(record)
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
            with explain_out_of_memory(batch, self.optim, self.device), self.forward.layers():
                loss = loss_fn(batch)
                loss.backward()
            losses.append(loss.detach())
        # Read once, when all are under way: reading a number waits for the device.
        if wrong := [loss for loss in self.processes.read(losses) if not math.isfinite(loss)]:
            self.zero_grad()
            raise not_finite("loss", wrong[0], self.rates)
        norm = norm_of_all = self.processes.clip_gradient(self.parameters, self.optim.grad_clip)
        if self.critic is not None:
            self.processes.sum_gradients(list(self.critic.head.parameters()))
            norm_of_all = math.hypot(norm, self.critic.clip_gradient())
        if not math.isfinite(norm_of_all):
            self.zero_grad()
            raise not_finite("gradient norm", norm_of_all, self.rates)
        self.optimizer.step()
        if self.critic is not None:
            self.critic.optimizer.step()
        self.zero_grad()
        return norm

    def zero_grad(self) -> None:
        """Drop the accumulated gradient of model and critic."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.critic is not None:
            self.critic.optimizer.zero_grad(set_to_none=True)

    @property
    def probe(self) -> ForwardPass:
        """A forward pass like those of training, in which no other process takes part: to measure its memory."""
        return self.forward

    # ---- numbers of rows, without gradient -----------------------------------------------------------------------

    def micro_batches(self, rows: Sequence[TrainRow], indices: Sequence[int]) -> list[MicroBatch]:
        """Deal the chosen rows into micro-batches: with each shared prefix once where the model can, else padded."""
        return self.forward.micro_batches(rows, indices)

    def compute_logprobs(
        self, rows: Sequence[TrainRow], temperature: float, batches: Sequence[MicroBatch] | None = None
    ) -> Float[Tensor, "N T"]:
        """Return the log-probs of the trained tokens of every row under the present weights, nats; 0 elsewhere.

        `batches` are all rows, dealt; None: they are dealt here.
        """
        dealt = self.micro_batches(rows, range(len(rows))) if batches is None else batches
        return self.forward.logprobs(rows, dealt, temperature)

    def compute_token_logprobs(
        self, rows: Sequence[TrainRow], batches: Sequence[MicroBatch], temperature: float
    ) -> TokenLogprobs:
        """Return log-probs and entropies of the scored tokens of every row; `batches` are all rows, dealt."""
        return self.forward.token_logprobs(rows, batches, temperature)

    def compute_values(self, rows: Sequence[TrainRow], batches: Sequence[MicroBatch]) -> Float[Tensor, "N T"]:
        """Return the critic's value before each trained token of every row; `batches` are all rows, dealt."""
        assert self.critic is not None, "values are computed only where the credit reads them"
        return self.forward.apply_head(rows, batches, self.critic.values)

    # ---- what the next update depends on --------------------------------------------------------------------------

    def weights(self, dtype: torch.dtype | None = None) -> Iterable[tuple[str, Tensor]]:
        """Return every weight by its name in a checkpoint, to be read once: of a model with adapters, `AdaptedWeights`.

        Args:
            dtype: weights are rounded to this type; None: weights keep their type.

        Raises: InvalidInput: as `AdaptedWeights`.
        """
        return merged_weights(self.model, dtype=dtype)

    def save_model(self, folder: Path) -> None:
        """Write the model as a Hugging Face or peft directory."""
        write_model(self.model, folder)

    def save(self, folder: Path) -> None:
        """Write the state of the optimizer, and the critic where there is one, into a folder."""
        save_optimizer(folder, self.optimizer)
        if self.critic is not None:
            save_critic(folder, self.critic)

    def load(self, folder: Path) -> None:
        """Put back what a learner of any number of processes wrote. Raises: RunError: it is of another model."""
        load_optimizer(folder, self.model, self.optimizer)
        if self.critic is not None:
            load_critic(folder, self.critic)

    def change_optim(self, optim: OptimSettings) -> None:
        """Take the learning rate, the clipping and the passes of the next steps from changed settings."""
        self.optim = optim

    def reset_optimizer(self) -> None:
        """Begin with an optimizer without moments."""
        self.optimizer = build_optimizer(self.model, self.optim)

    def set_reference(self, reference: OpenReference | None, pause: Pause = nullcontext) -> None:
        """Let the KL term read another frozen model.

        Args:
            reference: opens it; None: there is no such term.
            pause: holds sampling off, should the model be copied.
        """
        del pause
        self.reference = reference

    def take_weights(self) -> None:
        """Go on from weights that something else has given the model of the run; here it is the learner's own."""

    def release_whole(self) -> None:
        """Free the model of the run where the learner has shards of it; here it is the learner's own."""

    def close(self) -> None:
        """Drop what other processes hold of this learner; here there are none."""

    def with_optimizer(self, optim: OptimSettings, *, num_steps: int, rates: Sequence[str]) -> "Learner":
        """Return another learner of the same model, without a critic, that has an optimizer of its own."""
        return Learner(
            self.model, optim=optim, num_steps=num_steps, device=self.device, autocast=self.autocast, rates=rates
        )


class NotFinite(InvalidInput):
    """The loss or the gradient of an update is not finite, on every process that takes part in it."""


def not_finite(what: str, value: float, rates: Sequence[str]) -> NotFinite:
    """Return the error of an update whose loss or gradient is not finite.

    Args:
        what: of the two.
        value: its value.
        rates: the settings of the learning rates to lower.
    """
    do = f"lower {' or '.join(rates)}, or look at the rows with --dry-run"
    return NotFinite(sentence(what, "be finite", value, where="learner", do=do))


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
