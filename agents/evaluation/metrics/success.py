"""The success rate."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import SuccessSettings, successes_by_task
from envgym.core.trajectory import Trajectory
from envgym.stats import Estimate, estimate_success


class Success(SuccessSettings):
    """Share of episodes that succeed: the mean over tasks of the mean over a task's valid samples."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        """Return `success`."""
        samples = successes_by_task(episodes, self.success_at)
        return {"success": estimate_success(samples)} if samples else {}
