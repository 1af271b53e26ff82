"""Sibling baseline: a node against the other children of its parent."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.paths import ROOT, GroupTree, NodeKey, turn_of_nodes, turn_rewards
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
    def branches(self) -> dict[NodeKey, NodeKey]:
        """Node -> the nearest node, itself or above, that has siblings; the root where there is none."""
        found = {ROOT: ROOT}
        for node, children in self.group_tree.children.items():  # parents come before their children
            for child in children:
                found[child] = child if len(children) > 1 else found[node]
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
    def paid(self) -> dict[NodeKey, float]:
        """Last node of a turn -> what the turn paid."""
        return {
            (number, nodes[-1]): reward
            for number, episode in zip(self.group_tree.tree_numbers, self.group_tree.group.valid, strict=True)
            for nodes, reward in zip(episode.turn_nodes, turn_rewards(episode), strict=True)
        }

    @cached_property
    def returns(self) -> dict[NodeKey, dict[int, float]]:
        """Node -> turn t, its own or later -> what is paid from turn t on, the mean over children at every branch.

        The nodes of an unbranched stretch share one entry, as what is paid from a later turn on is paid below.
        """
        children, turns, paid = self.group_tree.children, self.turns, self.paid
        found: dict[NodeKey, dict[int, float]] = {}
        for node in reversed(self.branches):  # children come before their parents
            turn = turns[node]
            if turn < 0:  # the root, or an ending without tokens, which is no turn
                found[node] = {}
                continue
            below = children.get(node, ())
            later = found[below[0]] if len(below) == 1 else _means([found[child] for child in below])
            next_turn = turn if turn in later else turn + 1  # a turn goes on below a fork inside it
            later[turn] = paid.get(node, 0.0) + later.get(next_turn, 0.0)
            found[node] = later
        return found

    @cached_property
    def advantages(self) -> dict[NodeKey, dict[int, float]]:
        """Node with siblings -> turn -> what is paid from the turn on, minus the mean of the siblings."""
        found: dict[NodeKey, dict[int, float]] = {ROOT: {}}
        for siblings in self.group_tree.children.values():
            if len(siblings) > 1:
                compared = _against_others([self.returns[sibling] for sibling in siblings])
                found |= zip(siblings, compared, strict=True)
        return found

    def weight(self, path: tuple[NodeKey, ...]) -> float:
        """Return Π 1 / #children along a path."""
        weight = 1.0
        for node in path[:-1]:
            weight /= len(self.group_tree.children[node])
        return weight

    def advantage(self, node: NodeKey) -> float:
        """Return Q of a node less its baseline; 0 where there is nothing to compare it with."""
        return self.advantages[self.branches[node]].get(self.turns[node], 0.0)


def _by_turn(returns: Sequence[dict[int, float]]) -> dict[int, list[float]]:
    """Return turn -> what every node gets from it on; what has ended gets 0."""
    turns = {turn: None for of_node in returns for turn in of_node}
    return {turn: [of_node.get(turn, 0.0) for of_node in returns] for turn in turns}


def _means(returns: Sequence[dict[int, float]]) -> dict[int, float]:
    """Return the mean over the nodes for every turn."""
    return {turn: statistics.fmean(values) for turn, values in _by_turn(returns).items()}


def _against_others(returns: Sequence[dict[int, float]]) -> list[dict[int, float]]:
    """Return for every node and turn the value minus the mean of the others' values; of two nodes or more."""
    found: list[dict[int, float]] = [{} for _ in returns]
    for turn, values in _by_turn(returns).items():
        for of_node, value in zip(found, values, strict=True):
            others = math.fsum([*values, -value])  # exact: the others' own sum
            of_node[turn] = value - others / (len(values) - 1)
    return found
