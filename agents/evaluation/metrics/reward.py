"""The mean reward."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import rewards_by_task
from envgym.core.trajectory import Trajectory
from envgym.seeds import generator
from envgym.stats import Estimate, estimate_mean


def reward(episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
    """Return `reward`, the mean over tasks of the mean reward of a task's valid samples."""
    samples = rewards_by_task(episodes)
    return {"reward": estimate_mean(samples, rng=generator("metric", "reward"))} if samples else {}
