"""iStar's process-reward model: a copy of the policy that learns preferences; its log-ratios are rewards of turns."""

import asyncio
from collections.abc import Sequence

from envgym.core.trajectory import Group, Trajectory
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses.aggregate import TokenSum
from envgym.trainer.methods.losses.dpo import Dpo
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.base import ModelContext
from envgym.trainer.models.trained import LearningModel, rows_of_episodes, sampled_rows


class ImplicitPrm(LearningModel):
    """Reward turn t with r_t = beta Σ (log phi - log pi_behavior) over its tokens, phi trained by DPO on each step.

    The loss is that of `dpo` with `per=turn`, over all pairs of episodes of a group with different rewards, one update
    a step; the reference is the policy that sampled. The rewards of a step are those before its update.

    Source: 2509.19199 (iStar, OPRL) and its authors' code, whose pairs are successes against failures.
    """

    def __init__(
        self,
        context: ModelContext,
        *,
        path: str | None = None,
        beta: float = 0.05,
        lr: float = 1e-6,
        grad_clip: float = 10.0,
    ) -> None:
        """Name the model.

        Args:
            context: of the run.
            path: model that it begins with, as `model.name`; null: a copy of the policy.
            beta: scale of rewards and margins, above 0.
            lr: learning rate of AdamW.
            grad_clip: largest norm of the gradient.
        """
        super().__init__(context, path=path, optim=OptimSettings(lr=lr, grad_clip=grad_clip))
        self._beta = beta
        self._temperature = context.sampling.temperature
        self._objective = Objective(
            loss=Dpo(beta=beta, per="turn", reference="behavior"),
            correction=NoCorrection(),
            aggregation=TokenSum(),
            settings=ObjectiveSettings(),
            temperature=self._temperature,
        )

    async def score_turns(self, episodes: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        """Return the reward of every turn of some episodes; 0 where a turn has no sampled token."""
        return await asyncio.to_thread(self._score_turns, episodes)

    def _score_turns(self, episodes: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        rewards = [[0.0] * len(episode.turns) for episode in episodes]
        rows = rows_of_episodes(episodes)
        if rows:
            with self._one_at_a_time:
                logprobs = self.learner.compute_logprobs(rows, self._temperature).tolist()
            for row, values in zip(rows, logprobs, strict=True):
                assert row.id.row is not None, "rows of episodes"
                tokens = zip(row.id.row.turns, row.loss_mask, values, row.behavior_logprobs, strict=False)
                for turn, trains, value, behavior in tokens:
                    if trains:
                        rewards[row.id.episode][turn] += self._beta * (value - behavior)
        return [tuple(of_turns) for of_turns in rewards]

    def train_step(self, groups: Sequence[Group], *, step: int) -> Metrics:
        """Make one update on the pairs of a step."""
        rows = sampled_rows(groups)
        if not rows:
            return {}
        with self._one_at_a_time:
            metrics = self.learner.train_step(rows, self._objective, step=step)
        prefix = "loss/policy/"  # what the loss has measured of its pairs; nothing where there was none
        pair_metrics = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
        loss = metrics["loss/policy"] * metrics["train/trained_tokens"]
        return {"loss": loss, "grad_norm": metrics["optim/grad_norm"], **pair_metrics}
