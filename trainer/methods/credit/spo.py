"""SPO: the advantage of a segment is its gain in the tree's value."""

import statistics

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import EPSILON, episode_rewards
from envgym.trainer.methods.credit.paths import ROOT, GroupTree, NodeKey, TreeCredit
from envgym.trainer.methods.protocols import TrajectoryCredit


class Spo(TreeCredit):
    """Difference values: A(n) = V(n) - V(parent), V the mean over children, at a leaf the episode's reward.

    Unbranched nodes are one segment with one advantage. Every edge is one sample, so train shared tokens `once`
    (`objective.shared_tokens`). Chains get Dr. GRPO's advantages. Source: 2505.23564, the tree form.
    """

    standardise: bool = False
    """Divide by the spread of the parent's children."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        group_tree = GroupTree(group=group)
        values = self._values(group_tree, episode_rewards(group))
        gains: dict[NodeKey, float] = {}
        for above in sorted(group_tree.children, key=lambda node: node[1]):
            below = group_tree.children[above]
            if above != ROOT and len(below) == 1:
                gains[below[0]] = gains[above]
                continue
            spread = statistics.stdev(values[node] for node in below) if len(below) > 1 else 0.0
            for node in below:
                gains[node] = (values[node] - values[above]) / (spread + EPSILON if self.standardise else 1.0)
        return group_tree.credits(gains.__getitem__)

    @staticmethod
    def _values(group_tree: GroupTree, rewards: list[float]) -> dict[NodeKey, float]:
        """Return V of every node, children before their parents."""
        values = {path[-1]: reward for path, reward in zip(group_tree.paths, rewards, strict=True)}
        inner = sorted(group_tree.children, key=lambda node: (node != ROOT, node[1]), reverse=True)
        for node in inner:
            values[node] = statistics.fmean(values[child] for child in group_tree.children[node])
        return values
