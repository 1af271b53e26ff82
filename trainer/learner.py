"""The learner: a model, an optimizer, and one exact update from rows of numbers.

An update's gradient does not depend on how its rows are dealt into micro-batches: every sum is divided by the
denominator of the whole update. The learner knows no envs, no episodes and no sampling.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from envgym.errors import InvalidInput, sentence
from envgym.trainer.batch import MicroBatch, TrainRow, micro_batches, packed_batches
from envgym.trainer.corrections import Correction, CorrectionResult, NoCorrection
from envgym.trainer.logprobs import TokenLogprobs, token_logprobs
from envgym.trainer.losses import Aggregation, Denominator, KlEstimator, PolicyLoss, aggregate, denominator_of
from envgym.trainer.losses.entropy import entropy_bonus
from envgym.trainer.losses.kl import kl_to_reference
from envgym.trainer.optimizer import adamw, schedule
from envgym.trainer.packing import can_pack, packed_logprobs
from envgym.trainer.reference import OpenReference
from envgym.trainer.seen import Metrics, Seen, correction_metrics
from envgym.trainer.settings import ObjectiveSettings, OptimSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is minimised, as one choice per point."""

    loss: PolicyLoss
    correction: Correction
    settings: ObjectiveSettings
    temperature: float
    """That the rows were sampled at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """What is computed once, with the weights from before the first update: [N, T] on the whole batch's padding."""

    old_logprobs_NT: Float[Tensor, "N T"]
    reference_logprobs_NT: Float[Tensor, "N T"] | None
    corrected: CorrectionResult


class Learner:
    """Trains one model in one process."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optim: OptimSettings,
        num_steps: int,
        device: torch.device,
        autocast: torch.dtype | None = None,
        reference: OpenReference | None = None,
    ) -> None:
        """Take over the model's trainable parameters.

        Args:
            model: a Hugging Face causal language model, plain or wrapped by peft.
            optim: AdamW and its schedule.
            num_steps: train steps that the decay is laid over.
            device: where the model is.
            autocast: dtype of the matrix products; None = that of the weights.
            reference: opens the frozen model for the KL term; None = there is none.
        """
        self.model, self.optim, self.device = model, optim, device
        self.autocast, self.reference = autocast, reference
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = adamw(model, optim)
        self._make_batches = packed_batches if optim.packing and can_pack(model) else micro_batches
        self._num_steps = num_steps
        self._dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)  # of log-probs

    def learn(self, rows: Sequence[TrainRow], objective: Objective, *, step: int) -> Metrics:
        """Run the updates of one train step on `rows` and return what was seen, as means over trained tokens.

        Raises: InvalidInput: the loss or the gradient is not finite. The update is not made; those before it are.
        """
        rate = self.optim.lr * schedule(self.optim, step, self._num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        single = self.optim.epochs * self.optim.minibatches == 1
        on_policy = single and isinstance(objective.correction, NoCorrection)
        fixed = None if on_policy else self._fix(rows, objective)
        total = Seen()
        norms: list[float] = []
        for _ in range(self.optim.epochs):
            for chosen in _deal(len(rows), self.optim.minibatches):
                norms.append(self._update(rows, chosen, objective, fixed, total))
        gap = fixed.corrected.stats if fixed is not None else total.correction
        return {
            **total.metrics(),
            **(correction_metrics(gap) if gap is not None else {}),
            "optim/grad_norm": sum(norms) / max(len(norms), 1),
            "optim/lr": rate,
            "optim/updates": float(len(norms)),
        }

    def rehearse(self, rows: Sequence[TrainRow], objective: Objective) -> int:
        """Add the gradient of the largest micro-batch, which needs the most memory; return its tokens.

        Nothing is updated; the caller drops the gradient or looks at it.
        """
        batch = max(self.batches(rows, range(len(rows))), key=lambda batch: batch.num_tokens)
        denominator = denominator_of_rows(rows, objective.settings.max_tokens)
        self._loss(batch, objective, denominator, None, Seen()).backward()
        return batch.num_tokens

    def batches(self, rows: Sequence[TrainRow], chosen: Sequence[int]) -> list[MicroBatch]:
        """Deal the chosen rows into micro-batches: with each shared prefix once where the model can, else padded."""
        return self._make_batches(rows, chosen, self.optim.micro_batch_tokens, self.device)

    def _update(
        self,
        rows: Sequence[TrainRow],
        chosen: Sequence[int],
        objective: Objective,
        fixed: _Fixed | None,
        total: "Seen",
    ) -> float:
        """Accumulate the gradient of one update exactly, clip it, step; return its norm."""
        denominator = denominator_of_rows([rows[number] for number in chosen], objective.settings.max_tokens)
        self.optimizer.zero_grad(set_to_none=True)
        for batch in self.batches(rows, chosen):
            loss = self._loss(batch, objective, denominator, fixed, total)
            if not torch.isfinite(loss):
                self.optimizer.zero_grad(set_to_none=True)
                do = "lower optim.lr, or look at the rows with --dry-run"
                raise InvalidInput(sentence("loss", "be finite", loss.item(), where="learner", do=do))
            loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.optim.grad_clip).item()
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise InvalidInput(sentence("gradient norm", "be finite", norm, where="learner", do="lower optim.lr"))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _loss(
        self,
        batch: MicroBatch,
        objective: Objective,
        denominator: Denominator,
        fixed: _Fixed | None,
        total: "Seen",
    ) -> Float[Tensor, ""]:
        """Return this micro-batch's share of the update's loss."""
        settings = objective.settings
        with _training_mode(self.model), self._cast():
            scored = _logprobs(self.model, batch, objective.temperature, with_entropy=True)
        logprobs_BT, entropies_BT = scored.logprobs_BT, scored.entropies_BT
        assert entropies_BT is not None, "asked for"
        if fixed is None:
            old_BT = logprobs_BT.detach()
            corrected = objective.correction(
                old_logprobs_BT=old_BT,
                behavior_logprobs_BT=batch.behavior_logprobs_BT,
                loss_mask_BT=batch.loss_mask_BT,
            )
            total.add_correction(corrected.stats)
            reference_BT = self._reference_logprobs(batch, objective)
        else:
            old_BT, reference_BT, corrected = _of_rows(fixed, batch)
        token_loss = objective.loss(
            logprobs_BT=logprobs_BT,
            old_logprobs_BT=old_BT,
            advantages_BT=batch.advantages_BT,
            loss_mask_BT=corrected.loss_mask_BT,
        )
        losses_BT = token_loss.losses_BT * corrected.weights_BT
        mask_BT = corrected.loss_mask_BT
        total.add(token_loss.stats, losses_BT, entropies_BT, batch.loss_mask_BT)
        if reference_BT is not None:
            estimator = KlEstimator(settings.kl)
            kl_BT = kl_to_reference(logprobs_BT, reference_BT, mask_BT, estimator=estimator)
            total.add_kl(kl_BT)
            losses_BT = losses_BT + settings.kl_coef * kl_BT
        if settings.entropy_coef:
            losses_BT = losses_BT + settings.entropy_coef * entropy_bonus(entropies_BT, mask_BT)
        mode = Aggregation(settings.aggregation)
        return aggregate(losses_BT, mask_BT, batch.weights_BT, mode=mode, denominator=denominator)

    def _fix(self, rows: Sequence[TrainRow], objective: Objective) -> _Fixed:
        """Compute old and reference log-probs of every row with the weights as they are now, and the correction."""
        shape = (len(rows), max(len(row) for row in rows))
        old_NT, behavior_NT = (torch.zeros(shape, dtype=self._dtype, device=self.device) for _ in range(2))
        mask_NT = torch.zeros(shape, dtype=torch.bool, device=self.device)
        reference_NT = torch.zeros_like(old_NT) if self.reference is not None else None
        # In the packs of the updates, so that every ratio of the first pass is exactly 1.
        dealt = _deal(len(rows), self.optim.minibatches)
        for batch in (batch for chosen in dealt for batch in self.batches(rows, chosen)):
            here = (torch.tensor(batch.rows, device=self.device), slice(0, batch.input_ids_BT.shape[1]))
            old_NT[here] = self._score(self.model, batch, objective.temperature)
            behavior_NT[here] = batch.behavior_logprobs_BT.to(self._dtype)
            mask_NT[here] = batch.loss_mask_BT
            reference_BT = self._reference_logprobs(batch, objective)
            if reference_NT is not None and reference_BT is not None:
                reference_NT[here] = reference_BT
        corrected = objective.correction(old_logprobs_BT=old_NT, behavior_logprobs_BT=behavior_NT, loss_mask_BT=mask_NT)
        return _Fixed(old_logprobs_NT=old_NT, reference_logprobs_NT=reference_NT, corrected=corrected)

    def score(self, rows: Sequence[TrainRow], temperature: float) -> Float[Tensor, "N T"]:
        """Return the log-probs of the trained tokens of every row with the weights as they are now; 0 elsewhere."""
        found_NT = torch.zeros((len(rows), max(map(len, rows))), dtype=self._dtype, device=self.device)
        for batch in self.batches(rows, range(len(rows))):
            here = (torch.tensor(batch.rows, device=self.device), slice(0, batch.input_ids_BT.shape[1]))
            found_NT[here] = self._score(self.model, batch, temperature)
        return found_NT

    def _score(self, model: nn.Module, batch: MicroBatch, temperature: float) -> Float[Tensor, "B T"]:
        # The model runs in the same mode and micro-batch as for the gradient, so that the first ratio is exactly 1.
        with _training_mode(self.model), torch.no_grad(), self._cast():
            return _logprobs(model, batch, temperature).logprobs_BT

    def _reference_logprobs(self, batch: MicroBatch, objective: Objective) -> Float[Tensor, "B T"] | None:
        if self.reference is None:
            return None
        with self.reference() as model:
            return self._score(model, batch, objective.temperature)

    def _cast(self) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)


def _logprobs(model: nn.Module, batch: MicroBatch, temperature: float, *, with_entropy: bool = False) -> TokenLogprobs:
    """Score the trained tokens of a micro-batch."""
    if batch.pack is not None:
        return packed_logprobs(
            model,
            batch.pack,
            loss_mask_BT=batch.loss_mask_BT,
            temperature=temperature,
            with_entropy=with_entropy,
        )
    return token_logprobs(
        model,
        input_ids_BT=batch.input_ids_BT,
        attention_mask_BT=batch.attention_mask_BT,
        loss_mask_BT=batch.loss_mask_BT,
        temperature=temperature,
        with_entropy=with_entropy,
    )


@contextmanager
def _training_mode(model: nn.Module) -> Iterator[None]:
    """Train mode only where gradient checkpointing asks for it; dropout stays off (see `without_dropout`)."""
    before = model.training
    model.train(bool(getattr(model, "is_gradient_checkpointing", False)))
    try:
        yield
    finally:
        model.train(before)


def denominator_of_rows(rows: Sequence[TrainRow], max_tokens: int | None) -> Denominator:
    """Count what an update is divided by; correction masks do not change it."""
    parts = (
        denominator_of(
            torch.tensor([row.loss_mask]), torch.tensor([row.weights], dtype=torch.float64), max_tokens=max_tokens
        )
        for row in rows
    )
    return sum(parts, Denominator(tokens=0.0, sequences=0.0, max_tokens=max_tokens))


def _of_rows(fixed: _Fixed, batch: MicroBatch) -> tuple[Tensor, Tensor | None, CorrectionResult]:
    """Cut the rows of a micro-batch out of what was fixed for the whole batch."""
    here = (torch.tensor(batch.rows, device=batch.input_ids_BT.device), slice(0, batch.input_ids_BT.shape[1]))
    reference_NT = fixed.reference_logprobs_NT
    corrected = CorrectionResult(
        weights_BT=fixed.corrected.weights_BT[here],
        loss_mask_BT=fixed.corrected.loss_mask_BT[here],
        stats=fixed.corrected.stats,
    )
    return fixed.old_logprobs_NT[here], None if reference_NT is None else reference_NT[here], corrected


def _deal(num_rows: int, num_parts: int) -> list[range]:
    """Deal rows into parts by turns; neighbours (episodes of one group) go to different parts."""
    return [range(part, num_rows, num_parts) for part in range(min(num_parts, num_rows))]


def without_dropout(model: nn.Module) -> nn.Module:
    """Set every dropout to 0: sampling and training must see one distribution."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout"):  # how attention layers keep theirs
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model
