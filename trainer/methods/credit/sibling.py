"""Sibling baseline: a node against the other children of its parent."""

import statistics
from dataclasses import dataclass
from functools import cached_property

from envgym.core.trajectory import Group
from envgym.core.turns import Scored
from envgym.settings import Settings
from envgym.trainer.methods.credit.paths import ROOT, GroupTree, NodeKey, turn_of_nodes
from envgym.trainer.methods.protocols import TrajectoryCredit


class Sibling(Settings):
    """Compare siblings: A(n) = L w(leaf) (Q(n) - mean over siblings s of Q(s)), Q(n) = r(n) + mean over children of Q.

    The first turns of a group's trees are siblings: all trees share the prompt. A node without siblings is compared
    with the siblings of the nearest node above that has some: with what they get from the same turn on, 0 where they
    have ended. If there is none either, A = 0. w(leaf) = Π 1 / #children along the path, so a branch weighs as much
    as the chain it splits; times the number L of leaves, the weights of a group's rows have mean 1. Rows train
    `per_path`.

    Where branching depends on the past alone, and with a group's loss divided by its leaves (`seq-mean-token-sum`),
    the gradient is unbiased. Groups of chains get `turn_grpo`'s advantages. Source: own.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        values = _Values(group_tree=GroupTree(group=group))
        paths = values.group_tree.paths
        credits: list[TrajectoryCredit] = []
        for episode, path in zip(group.valid, paths, strict=True):
            weight = len(paths) * values.weight(path)
            advantages = (0.0, *(weight * values.advantage(node) for node in path[1:]))
            credits.append(TrajectoryCredit(trajectory=episode, advantages=advantages))
        return tuple(credits)


@dataclass(frozen=True, kw_only=True)
class _Values:
    """Means over the branches of a group, from a turn on."""

    group_tree: GroupTree

    @cached_property
    def parents(self) -> dict[NodeKey, NodeKey]:
        """Node -> its parent."""
        return {below: above for above, found in self.group_tree.children.items() for below in found}

    @cached_property
    def branches(self) -> dict[NodeKey, NodeKey]:
        """Node -> the nearest node, itself or above, that has siblings; the root where there is none."""
        found = {ROOT: ROOT}
        for node in sorted(self.parents, key=lambda node: node[1]):  # parents come before their children
            parent = self.parents[node]
            found[node] = node if len(self.group_tree.children[parent]) > 1 else found[parent]
        return found

    @cached_property
    def turns(self) -> dict[NodeKey, int]:
        """Node -> its turn."""
        return {
            node: turn
            for episode, path in zip(self.group_tree.group.valid, self.group_tree.paths, strict=True)
            for node, turn in zip(path, turn_of_nodes(episode), strict=True)
        }

    @cached_property
    def returns(self) -> dict[NodeKey, dict[int, float]]:
        """Node -> turn t, its own or later -> what is paid from turn t on, the mean over children at every branch.

        The nodes of an unbranched stretch share one entry, as what is paid from a later turn on is paid below.
        """
        found: dict[NodeKey, dict[int, float]] = {}
        for node in sorted(self.parents, key=lambda node: -node[1]):  # children come after their parents
            mine, children = self.turns[node], self.group_tree.children.get(node, ())
            if mine < 0:  # an ending without tokens, which is no turn
                found[node] = {}
                continue
            following = statistics.fmean([found[child].get(self.turns[child], 0.0) for child in children] or [0.0])
            if len(children) == 1:
                found[node] = found[children[0]]
            else:
                below = [found[child] for child in children]
                last = max((max(child, default=-1) for child in below), default=-1)
                found[node] = {
                    turn: statistics.fmean([child.get(turn, 0.0) for child in below])
                    for turn in range(mine + 1, last + 1)
                }
            found[node][mine] = self._paid(node) + following
        return found

    def _paid(self, node: NodeKey) -> float:
        """Return what the node itself paid."""
        number, index = node
        outcome = self.group_tree.group.trees[number].nodes[index].outcome
        return outcome.reward.value if outcome is not None and isinstance(outcome.reward, Scored) else 0.0

    def weight(self, path: tuple[NodeKey, ...]) -> float:
        """Return Π 1 / #children along a path."""
        weight = 1.0
        for node in path[:-1]:
            weight /= len(self.group_tree.children[node])
        return weight

    def advantage(self, node: NodeKey) -> float:
        """Return Q of a node less its baseline; 0 where there is nothing to compare it with."""
        turn, branch = self.turns[node], self.branches[node]
        if branch == ROOT:
            return 0.0
        siblings = self.group_tree.children[self.parents[branch]]
        others = [self.returns[sibling].get(turn, 0.0) for sibling in siblings if sibling != branch]
        return self.returns[node].get(turn, 0.0) - statistics.fmean(others)
