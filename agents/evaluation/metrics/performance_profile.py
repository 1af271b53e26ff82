"""The performance profile of rewards."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import rewards_by_task
from envgym.core.trajectory import Trajectory
from envgym.settings import Settings
from envgym.stats import Estimate, estimate_success


class PerformanceProfile(Settings):
    """Share of rewards above each of some thresholds: the mean over tasks of the share of their valid samples.

    Source: 2108.13264, whose score distribution it is where all tasks have the same number of samples.
    """

    above: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    """Rewards above which the share is taken."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        """Return `above_<threshold>`."""
        rewards = rewards_by_task(episodes)
        return {f"above_{tau:g}": _share_above(rewards, tau) for tau in self.above if rewards}


def _share_above(rewards: dict[str, list[float]], tau: float) -> Estimate:
    return estimate_success({task: [reward > tau for reward in own] for task, own in rewards.items()})
