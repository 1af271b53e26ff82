"""Success within some turns."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import SuccessSettings, by_task, reward_of
from envgym.core.trajectory import Trajectory
from envgym.stats import Estimate, estimate_success


class SuccessWithinTurns(SuccessSettings):
    """Share of the valid episodes that succeed in at most so many turns."""

    turns: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Turns; above the longest valid episode nothing changes, and only the first such number is reported."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        """Return `success_within_<turns>`."""
        valid = [episode for episode in episodes if episode.is_valid]
        longest = max((len(episode.turns) for episode in valid), default=0)
        limits = sorted(self.turns)
        beyond = [limit for limit in limits if limit >= longest][:1]
        shown = [limit for limit in limits if limit < longest] + beyond
        return {f"success_within_{limit}": self._estimate(valid, limit) for limit in shown if valid}

    def _estimate(self, valid: Sequence[Trajectory], limit: int) -> Estimate:
        def succeeds(episode: Trajectory) -> bool:
            reward = reward_of(episode)
            return reward is not None and reward >= self.success_at and len(episode.turns) <= limit

        return estimate_success(by_task(valid, succeeds))
