"""TreeRL: the global advantage of a step plus its local one."""

import statistics
from itertools import pairwise

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import episode_rewards, leave_one_out
from envgym.trainer.methods.credit.paths import ROOT, GroupTree, NodeKey, TreeCredit
from envgym.trainer.methods.protocols import TrajectoryCredit


class TreeRl(TreeCredit):
    """Add global and local advantage: A(n) = (G(n) + L(n)) / |leaves(n)|^e, G = V(n) - V(root), L = V(n) - V(parent).

    V(n) is the mean of r_i - mean_{j != i} r_j over the leaves below n; V(root) = 0. Nodes without a branch between
    them are one step: all of them get the L of the first. The exponent e is `shared`; rows train `per_path`, so a
    node with k leaves is trained k times: e = 1 makes that once, 0 leaves it, 1/2 is the paper's.

    Source: 2506.11902. The formula is the paper's; the authors' code divides V before the difference is taken, and
    copies L from the step before wherever |L| < 1e-8, also at a branch.
    """

    shared: float = Field(default=0.5, ge=0, le=1)
    """The exponent e: how much less a node counts the more leaves hold it."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        group_tree = GroupTree(group=group)
        of_leaf = leave_one_out(episode_rewards(group))
        values = {
            node: statistics.fmean(of_leaf[number] for number in episodes_through)
            for node, episodes_through in group_tree.episodes_through.items()
        }
        values[ROOT] = 0.0
        steps = {
            node: step for path in group_tree.paths for node, step in self._steps(path, values, group_tree).items()
        }
        return group_tree.credits(
            lambda node: (values[node] + steps[node]) * len(group_tree.episodes_through[node]) ** -self.shared
        )

    @staticmethod
    def _steps(path: tuple[NodeKey, ...], values: dict[NodeKey, float], group_tree: GroupTree) -> dict[NodeKey, float]:
        """Return L of every node of a path, the same along an unbranched run."""
        steps: dict[NodeKey, float] = {}
        for above, node in pairwise(path):
            goes_on = above != ROOT and len(group_tree.children[above]) == 1
            steps[node] = steps[above] if goes_on else values[node] - values[above]
        return steps
