"""The learner: a model, an optimizer, and one exact update from rows of numbers.

An update's gradient does not depend on how its rows are dealt into micro-batches: every sum is divided by the
denominator of the whole update. The learner knows no envs, no episodes and no sampling.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from envgym.errors import InvalidInput, sentence
from envgym.trainer.batch.rows import MicroBatch, TrainRow, pad
from envgym.trainer.learner.critic import Critic, PaddedValueTargets, supervised_tokens
from envgym.trainer.learner.forward import Scorer
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.learner.objective import Objective, OldLogprobs, denominator_of_rows, policy_loss
from envgym.trainer.learner.optimizer import adamw, schedule
from envgym.trainer.learner.reference import OpenReference
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import Denominator
from envgym.trainer.metrics.update import Metrics, UpdateMetrics, correction_metrics
from envgym.trainer.settings import OptimSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One train step: its rows, and what is known of them before its first update."""

    rows: Sequence[TrainRow]
    objective: Objective
    before: OldLogprobs | None
    """None: it is taken from the pass that makes the gradient."""
    value_targets: PaddedValueTargets | None
    """None: there is no critic, or nothing that it could learn."""
    total: UpdateMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """What the sums of one update are divided by."""

    policy: Denominator
    values: Denominator


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
        reference: OpenReference | None = None,
        critic: Critic | None = None,
    ) -> None:
        """Take over the model's trainable parameters.

        Args:
            model: a Hugging Face causal language model, plain or wrapped by peft.
            optim: AdamW and its schedule.
            num_steps: train steps that the decay is laid over.
            device: where the model is.
            autocast: dtype of the matrix products; None = that of the weights.
            reference: opens the frozen model for the KL term; None = there is none.
            critic: on this model; None = there is none.
        """
        self.model, self.optim, self.device, self.autocast = model, optim, device, autocast
        self.reference, self.critic = reference, critic
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = adamw(model, optim)
        self._scorer = Scorer(model, optim, device=device, autocast=autocast)
        self._num_steps = num_steps

    def learn(self, rows: Sequence[TrainRow], objective: Objective, *, step: int) -> Metrics:
        """Run the updates of one train step on `rows` and return what was seen, as means over trained tokens.

        Raises: InvalidInput: the loss or the gradient is not finite. The update is not made; those before it are.
        """
        rate = self.optim.lr * schedule(self.optim, step, self._num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        before = self._look(rows, objective) if needs_old_logprobs_pass(self.optim, objective) else None
        work = _Work(
            rows=rows, objective=objective, before=before, value_targets=self._lessons(rows), total=UpdateMetrics()
        )
        norms: list[float] = []
        for _ in range(self.optim.epochs):
            for chosen in _deal(len(rows), self.optim.minibatches):
                norms.append(self._update(work, chosen))
        gap = before.corrected.stats if before is not None else work.total.correction
        return {
            **work.total.metrics(),
            **(correction_metrics(gap) if gap is not None else {}),
            **(work.value_targets.metrics() if work.value_targets is not None else {}),
            "optim/grad_norm": sum(norms) / max(len(norms), 1),
            "optim/lr": rate,
            "optim/updates": float(len(norms)),
        }

    def rehearse(self, rows: Sequence[TrainRow], objective: Objective) -> int:
        """Add the gradient of the largest micro-batch, which needs the most memory; return its tokens.

        Nothing is updated; the caller drops the gradient (`forget_gradient`) or looks at it.
        """
        work = _Work(
            rows=rows, objective=objective, before=None, value_targets=self._lessons(rows), total=UpdateMetrics()
        )
        batch = max(self.batches(rows, range(len(rows))), key=lambda batch: batch.num_tokens)
        self._loss(batch, work, _shares(rows, objective)).backward()
        return batch.num_tokens

    def batches(self, rows: Sequence[TrainRow], chosen: Sequence[int]) -> list[MicroBatch]:
        """Deal the chosen rows into micro-batches: with each shared prefix once where the model can, else padded."""
        return self._scorer.batches(rows, chosen)

    def score(self, rows: Sequence[TrainRow], temperature: float) -> Float[Tensor, "N T"]:
        """Return the log-probs of the trained tokens of every row with the weights as they are now; 0 elsewhere."""
        return self._scorer.logprobs(rows, self.batches(rows, range(len(rows))), temperature)

    def values(self, rows: Sequence[TrainRow]) -> list[list[float]]:
        """Return what the critic says before each trained token of every row; 0 elsewhere."""
        assert self.critic is not None, "asked only where credit needs one"
        said_NT = self._scorer.read(rows, self.batches(rows, range(len(rows))), self.critic.values)
        return [said[: len(row)] for row, said in zip(rows, said_NT.tolist(), strict=True)]

    def forget_gradient(self) -> None:
        """Drop what has been accumulated."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.critic is not None:
            self.critic.optimizer.zero_grad(set_to_none=True)

    def _update(self, work: _Work, chosen: Sequence[int]) -> float:
        """Accumulate the gradient of one update exactly, clip it, step; return the policy's norm."""
        shares = _shares([work.rows[number] for number in chosen], work.objective)
        self.forget_gradient()
        for batch in self.batches(work.rows, chosen):
            loss = self._loss(batch, work, shares)
            if not torch.isfinite(loss):
                self.forget_gradient()
                do = "lower optim.lr, or look at the rows with --dry-run"
                raise InvalidInput(sentence("loss", "be finite", loss.item(), where="learner", do=do))
            loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.optim.grad_clip).item()
        of_both = norm if self.critic is None else math.hypot(norm, self.critic.clip_gradient())
        if not math.isfinite(of_both):
            self.forget_gradient()
            raise InvalidInput(sentence("gradient norm", "be finite", of_both, where="learner", do="lower optim.lr"))
        self.optimizer.step()
        if self.critic is not None:
            self.critic.optimizer.step()
        self.forget_gradient()
        return norm

    def _loss(self, batch: MicroBatch, work: _Work, shares: _Shares) -> Float[Tensor, ""]:
        """Return this micro-batch's share of the update's loss: the policy's, and the critic's where there is one."""
        with self._scorer.running():
            states = self._scorer.states(batch)
            scored = states.logprobs(temperature=work.objective.temperature, with_entropy=True)
        before = self._now(scored, batch, work) if work.before is None else work.before.of(batch)
        loss = policy_loss(scored, batch, before, work.objective, denominator=shares.policy, total=work.total)
        if self.critic is not None and work.value_targets is not None:
            loss = loss + self.critic.loss(
                states, batch, work.value_targets, denominator=shares.values, total=work.total
            )
        return loss

    def _lessons(self, rows: Sequence[TrainRow]) -> PaddedValueTargets | None:
        if self.critic is None or not any(row.supervised for row in rows):
            return None
        return PaddedValueTargets.of_rows(rows, dtype=self._scorer.dtype, device=self.device)

    def _now(self, scored: TokenLogprobs, batch: MicroBatch, work: _Work) -> OldLogprobs:
        """Take what is known before an update from its own pass over a micro-batch."""
        now_BT = scored.logprobs_BT.detach()
        behavior_BT = batch.behavior_logprobs_BT.to(now_BT.dtype)
        corrected = work.objective.correction(
            old_logprobs_BT=now_BT, behavior_logprobs_BT=behavior_BT, loss_mask_BT=batch.loss_mask_BT
        )
        work.total.add_correction(corrected.stats)
        reference_BT = None
        if self.reference is not None:
            with self.reference() as model, self._scorer.running(), torch.no_grad():
                states = self._scorer.states(batch, model)
                reference_BT = states.logprobs(temperature=work.objective.temperature).logprobs_BT
        old_BT = behavior_BT if work.objective.is_bypass else now_BT
        return OldLogprobs(old_logprobs_BT=old_BT, reference_logprobs_BT=reference_BT, corrected=corrected)

    def _look(self, rows: Sequence[TrainRow], objective: Objective) -> OldLogprobs:
        """Compute old and reference log-probs of every row with the weights as they are now, and the correction."""
        # In the packs of the updates, so that every ratio of the first pass is exactly 1.
        dealt = _deal(len(rows), self.optim.minibatches)
        batches = [batch for chosen in dealt for batch in self.batches(rows, chosen)]
        old_NT = self._scorer.logprobs(rows, batches, objective.temperature)
        reference_NT = None
        if self.reference is not None:
            with self.reference() as model:
                reference_NT = self._scorer.logprobs(rows, batches, objective.temperature, model)
        whole = pad(rows, range(len(rows)), self.device)
        corrected = objective.correction(
            old_logprobs_BT=old_NT,
            behavior_logprobs_BT=whole.behavior_logprobs_BT.to(old_NT.dtype),
            loss_mask_BT=whole.loss_mask_BT,
        )
        return OldLogprobs(old_logprobs_BT=old_NT, reference_logprobs_BT=reference_NT, corrected=corrected)


def needs_old_logprobs_pass(optim: OptimSettings, objective: Objective) -> bool:
    """Return whether a step computes old log-probs in a pass of their own, before its first update.

    It need not where the old policy is the one that sampled, nor where it is the one that learns: in a single update
    without a correction.
    """
    is_single = optim.epochs * optim.minibatches == 1
    return not objective.is_bypass and not (is_single and isinstance(objective.correction, NoCorrection))


def _shares(rows: Sequence[TrainRow], objective: Objective) -> _Shares:
    """Count what an update of these rows is divided by."""
    policy = denominator_of_rows(rows)
    return _Shares(policy=policy, values=supervised_tokens(rows))


def _deal(num_rows: int, num_parts: int) -> list[range]:
    """Deal rows into parts by turns; neighbours (episodes of one group) go to different parts."""
    return [range(part, num_rows, num_parts) for part in range(min(num_parts, num_rows))]
