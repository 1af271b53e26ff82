"""Metrics of rewards of episodes: mean, components, success rates, inter-quartile mean and performance profile."""

from collections.abc import Sequence
from functools import partial

from envgym.agents.evaluation.metrics.base import (
    SuccessSettings,
    by_task,
    rewards_by_task,
    succeeds,
    successes_by_task,
)
from envgym.config.settings import Settings
from envgym.core.trajectory import Trajectory
from envgym.core.turns import Scored
from envgym.seeds import generator
from envgym.stats import Estimate, estimate_interquartile_mean, estimate_mean, estimate_success


def reward(episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
    """Return `reward`, the mean over tasks of the mean reward of a task's valid samples."""
    samples = rewards_by_task(episodes)
    return {"reward": estimate_mean(samples, rng=generator("metric", "reward"))} if samples else {}


def components(episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
    """Return `component_NAME` for each component of rewards: the mean over tasks of its mean over valid samples.

    An episode without a component counts as 0, as in the metrics of a train step.
    """
    parts = [(episode, episode.reward.components) for episode in episodes if isinstance(episode.reward, Scored)]
    names = sorted({name for _, own in parts for name in own})
    valid = [episode for episode, _ in parts]
    return {
        f"component_{name}": estimate_mean(by_task(valid, partial(_component, name)), rng=generator("metric", name))
        for name in names
    }


def _component(name: str, episode: Trajectory) -> float:
    return episode.reward.components.get(name, 0.0) if isinstance(episode.reward, Scored) else 0.0


class Success(SuccessSettings):
    """Share of episodes that succeed: the mean over tasks of the mean over a task's valid samples."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        samples = successes_by_task(episodes, self.success_at)
        return {"success": estimate_success(samples)} if samples else {}


class SuccessWithinTurns(SuccessSettings):
    """Share of the valid episodes that succeed in at most so many turns."""

    turns: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Turns; above the longest valid episode nothing changes, and only the first such number is reported."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        valid = [episode for episode in episodes if episode.is_valid]
        longest = max((len(episode.turns) for episode in valid), default=0)
        limits = sorted(self.turns)
        beyond = [limit for limit in limits if limit >= longest][:1]
        reported = [limit for limit in limits if limit < longest] + beyond
        return {f"success_within_{limit}": self._estimate(valid, limit) for limit in reported if valid}

    def _estimate(self, valid: Sequence[Trajectory], limit: int) -> Estimate:
        return estimate_success(
            by_task(valid, lambda episode: succeeds(episode, self.success_at) and len(episode.turns) <= limit)
        )


class Iqm(Settings):
    """Mean of the middle half of the rewards of all valid samples. Source: 2108.13264."""

    fixed_tasks: bool = False
    """The interval is for other samples of the same tasks (stratified bootstrap, as in rliable), which needs two
    samples per task; false: for other tasks of the same source, as all others here."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        samples = rewards_by_task(episodes)
        rng = generator("metric", "iqm")
        return {"iqm": estimate_interquartile_mean(samples, rng=rng, fixed_tasks=self.fixed_tasks)} if samples else {}


class PerformanceProfile(Settings):
    """Share of rewards above each of some thresholds: the mean over tasks of the share of their valid samples.

    Source: 2108.13264, whose score distribution it is where all tasks have the same number of samples.
    """

    above: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    """Rewards above which the share is taken."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        rewards = rewards_by_task(episodes)
        return {f"above_{tau:g}": _share_above(rewards, tau) for tau in self.above if rewards}


def _share_above(rewards: dict[str, list[float]], tau: float) -> Estimate:
    return estimate_success({task: [reward > tau for reward in own] for task, own in rewards.items()})
