"""A reward model: a second model with a scalar head, which learns beside the policy what episodes are preferred."""

import asyncio
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from envgym.core.pairs import Pair, Which, preference_pairs
from envgym.core.trajectory import Group
from envgym.trainer.batch.rows import MicroBatch, TrainRow, scored_row
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.settings import CriticSettings, OptimSettings
from envgym.trainer.learner.train_step import LossFn
from envgym.trainer.methods.annotators.process_reward import turn_prefixes
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.base import ModelContext
from envgym.trainer.models.trained import LearningModel


def preference_loss(
    learner: Learner, rows: Sequence[TrainRow], batches: Sequence[MicroBatch], pairs: Sequence[Pair[int]]
) -> tuple[Float[Tensor, " P"], LossFn]:
    """Return the margins m = r_c - r_r of pairs, and the loss of an update on the mean of -log sigmoid(m) over them.

    The loss couples rows, so it is differentiated by the rewards of all rows first; micro-batch by micro-batch that
    gradient is then carried through the model, which gives the gradient of all rows together.

    Example: r_c = 1 and r_r = 0 give a loss of log(1 + 1/e) = 0.3133. Source: 2203.02155 (Bradley and Terry's model).

    Args:
        learner: of a model with a value head.
        rows: as `_row_of` makes them, so that each has one value.
        batches: of all rows.
        pairs: of rows, at least one.
    """
    critic = learner.critic
    assert critic is not None, "a reward model has a head"
    rewards_N = learner.compute_values(rows, batches).sum(1).requires_grad_()
    margins_P = rewards_N[[pair.chosen for pair in pairs]] - rewards_N[[pair.rejected for pair in pairs]]
    (by_rewards_N,) = torch.autograd.grad(-logsigmoid(margins_P).mean(), rewards_N)

    def loss_fn(batch: MicroBatch) -> Float[Tensor, ""]:
        with learner.forward.mode():
            values_BT = critic.values(learner.forward.hidden_states(batch))
        return by_rewards_N[list(batch.rows)] @ values_BT.sum(1)

    return margins_P.detach(), loss_fn


class RewardModel(LearningModel):
    """Predict the reward r of a conversation after its last token; preferred episodes of a group get a higher one.

    One update a step, by the mean loss over all pairs of episodes of a group with different rewards. r is read from the
    state of the last sampled token, by a head as a critic's, so that a `token_critic` may begin with it.

    Source: 2203.02155, 2411.15124 (whose value model begins so), with pairs from what episodes were paid.
    """

    def __init__(
        self,
        context: ModelContext,
        *,
        path: str | None = None,
        lr: float = 3e-6,
        head_lr: float = 0.05,
        grad_clip: float = 1.0,
        pairs: Which = "all",
        min_margin: float = 0.0,
    ) -> None:
        """Name the model.

        Args:
            context: of the run.
            path: model that it begins with, as `model.name`; null: a copy of the policy.
            lr: learning rate of the body.
            head_lr: of the head: about how far one update moves a reward.
            grad_clip: largest norm of the gradient of the body, and of the head's.
            pairs: which episodes of a group are compared.
            min_margin: least difference of the rewards of a pair.
        """
        super().__init__(context, path=path, optim=OptimSettings(lr=lr, grad_clip=grad_clip))
        self._head = CriticSettings(lr=head_lr, detach=False)
        self._which, self._min_margin = pairs, min_margin

    def _critic_on(self, module: nn.Module) -> Critic:
        return Critic(module, self._head, self._optim, device=self._context.device)

    @property
    def _rates(self) -> Sequence[str]:
        return (self._setting("lr"), self._setting("head_lr"))

    async def compute_values(self, token_ids: Sequence[tuple[int, ...]], is_over: Sequence[bool]) -> list[float]:
        """Return r of each prefix, after its last token, whether the episode ended there or not."""
        del is_over
        return await asyncio.to_thread(self._compute_values, token_ids)

    def _compute_values(self, token_ids: Sequence[tuple[int, ...]]) -> list[float]:
        rows = [_row_of(ids) for ids in token_ids]
        if not rows:
            return []
        with self._one_at_a_time:
            values_NT = self.learner.compute_values(rows, self.learner.micro_batches(rows, range(len(rows))))
        return [float(value) for value in values_NT.sum(1)]

    def train_step(self, groups: Sequence[Group], *, step: int) -> Metrics:
        """Make one update on the pairs of a step."""
        rows: list[TrainRow] = []
        pairs: list[Pair[int]] = []
        for group in groups:
            rewards = dict(enumerate(episode_rewards(group), start=len(rows)))
            rows += [_row_of(turn_prefixes(episode)[-1].token_ids) for episode in group.valid]
            pairs += preference_pairs(rewards, which=self._which, min_margin=self._min_margin)
        if not pairs:
            return {"pairs": 0.0}
        with self._one_at_a_time:
            return self._update(rows, pairs)

    def _update(self, rows: Sequence[TrainRow], pairs: Sequence[Pair[int]]) -> Metrics:
        batches = self.learner.micro_batches(rows, range(len(rows)))
        margins_P, loss_fn = preference_loss(self.learner, rows, batches, pairs)
        norm = self.learner.update(batches, loss_fn)
        return {
            "loss": -logsigmoid(margins_P).mean().item(),
            "accuracy": (margins_P > 0).double().mean().item(),
            "margin": margins_P.mean().item(),
            "pairs": float(len(pairs)),
            "grad_norm": norm,
        }


def _row_of(token_ids: tuple[int, ...]) -> TrainRow:
    """Return a prefix with one more place: what is read before that token, whichever it is, is of the whole prefix."""
    return scored_row((*token_ids, 0), first=len(token_ids))
