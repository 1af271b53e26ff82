"""DeepSearch: what a search has backed up on a node, softly clipped."""

import math
import statistics

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.credit.paths import GroupTree, NodeKey
from envgym.trainer.methods.protocols import TrajectoryCredit

LEAST_WEIGHT = 0.1
"""Of a leaf on nodes far above it."""


class DeepSearch(Settings):
    """Back up and clip: A(n) = tanh(q(n)/T) q_max - mean of the leaves' q; a leaf's own q is not clipped.

    A correct leaf adds w to the nodes of its path, a wrong one subtracts it, w = max(depth / length, 0.1), so w is 1 at
    the leaf. Where both meet, the correct ones alone count: a node on a correct path stays positive.
    A group of one gets 0. Source: 2509.25454; depth counts nodes, where the authors count chunks of equal length.
    """

    temperature: float = Field(default=1.0, gt=0)
    """T: the higher, the nearer to linear."""
    ceiling: float = Field(default=1.0, gt=0)
    """The clip q_max."""
    success_at: float = 1.0
    """An episode is correct when its reward is at least this."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        group_tree = GroupTree(group=group)
        correct = [reward >= self.success_at for reward in episode_rewards(group)]
        backed: dict[NodeKey, dict[bool, float]] = {}
        for is_correct, path in zip(correct, group_tree.paths, strict=True):
            for depth, node in enumerate(path[1:], start=1):
                sums = backed.setdefault(node, {})
                sums[is_correct] = sums.get(is_correct, 0.0) + max(depth / (len(path) - 1), LEAST_WEIGHT)
        score = {
            node: math.tanh((sums[True] if True in sums else -sums[False]) / self.temperature) * self.ceiling
            for node, sums in backed.items()
        }
        for is_correct, path in zip(correct, group_tree.paths, strict=True):
            score[path[-1]] = 1.0 if is_correct else -1.0
        mean = statistics.fmean(score[path[-1]] for path in group_tree.paths) if correct else 0.0
        counts = len(correct) > 1
        return group_tree.credits(lambda node: score[node] - mean if counts else 0.0)
