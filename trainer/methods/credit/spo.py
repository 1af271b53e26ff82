"""SPO: a segment is worth what the tree's value gains by it."""

import statistics

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import EPSILON, episode_rewards
from envgym.trainer.methods.credit.paths import ROOT, Branches, Place
from envgym.trainer.methods.protocols import TrajectoryCredit


class Spo(Settings):
    """Difference values: A(n) = V(n) - V(parent), V the mean over children, at a leaf the episode's reward.

    Unbranched nodes are one segment with one advantage. Every edge is one sample, so train shared tokens `once`
    (`objective.shared_tokens`). Chains get Dr. GRPO's advantages. Source: 2505.23564, the tree form.
    """

    standardise: bool = False
    """Divide by the spread of the parent's children."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        branches = Branches(group=group)
        values = self._values(branches, episode_rewards(group))
        gains: dict[Place, float] = {}
        for above in sorted(branches.children, key=lambda place: place[1]):
            below = branches.children[above]
            if above != ROOT and len(below) == 1:
                gains[below[0]] = gains[above]
                continue
            spread = statistics.stdev(values[place] for place in below) if len(below) > 1 else 0.0
            for place in below:
                gains[place] = (values[place] - values[above]) / (spread + EPSILON if self.standardise else 1.0)
        return tuple(
            TrajectoryCredit(trajectory=episode, advantages=(0.0, *(gains[place] for place in path[1:])))
            for episode, path in zip(group.valid, branches.paths, strict=True)
        )

    @staticmethod
    def _values(branches: Branches, rewards: list[float]) -> dict[Place, float]:
        """Return V of every place, children before their parents."""
        values = {path[-1]: reward for path, reward in zip(branches.paths, rewards, strict=True)}
        inner = sorted(branches.children, key=lambda place: (place != ROOT, place[1]), reverse=True)
        for place in inner:
            values[place] = statistics.fmean(values[child] for child in branches.children[place])
        return values
