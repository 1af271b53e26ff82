"""Returns of the nodes of a group's trees: means over the branches below, and what a node weighs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from envgym.trainer.methods.credit.paths import ROOT, GroupTree, NodeKey, turn_of_nodes, turn_rewards


@dataclass(frozen=True, kw_only=True)
class NodeReturns:
    """Returns below the nodes of a group, from a turn on: means over the branches."""

    group_tree: GroupTree

    @cached_property
    def branches(self) -> dict[NodeKey, NodeKey]:
        """Node -> the nearest node, itself or above, that has siblings; the root where there is none."""
        nearest = {ROOT: ROOT}
        for node, children in self.group_tree.children.items():  # parents come before their children
            for child in children:
                nearest[child] = child if len(children) > 1 else nearest[node]
        return nearest

    @cached_property
    def parents(self) -> dict[NodeKey, NodeKey]:
        """Node -> the node right above it."""
        return {child: node for node, children in self.group_tree.children.items() for child in children}

    @cached_property
    def stretch_ends(self) -> dict[NodeKey, NodeKey]:
        """Node -> the first node, itself or below, that has several children or none."""
        ends: dict[NodeKey, NodeKey] = {}
        for node in reversed(self.branches):  # children come before their parents
            below = self.group_tree.children.get(node, ())
            ends[node] = ends[below[0]] if len(below) == 1 else node
        return ends

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
        by_node: dict[NodeKey, dict[int, float]] = {}
        for node in reversed(self.branches):  # children come before their parents
            turn = turns[node]
            if turn < 0:  # the root, or an ending without tokens, which is no turn
                by_node[node] = {}
                continue
            below = children.get(node, ())
            later = by_node[below[0]] if len(below) == 1 else _means([by_node[child] for child in below])
            next_turn = turn if turn in later else turn + 1  # a turn goes on below a fork inside it
            later[turn] = paid.get(node, 0.0) + later.get(next_turn, 0.0)
            by_node[node] = later
        return by_node

    @cached_property
    def squares(self) -> dict[NodeKey, dict[int, float]]:
        """Node -> turn t, its own or later -> mean square over the episodes below of what is paid from turn t on.

        The mean over children is taken at every branch, as in `returns`.
        """
        by_node: dict[NodeKey, dict[int, float]] = {}
        for node in reversed(self.branches):  # children come before their parents
            turn, below = self.turns[node], self.group_tree.children.get(node, ())
            squares = by_node[below[0]] if len(below) == 1 else _means([by_node[child] for child in below])
            if turn >= 0:
                means = self.returns[below[0]] if len(below) == 1 else _means([self.returns[child] for child in below])
                later = turn if any(self.turns[child] == turn for child in below) else turn + 1
                reward = self.paid.get(node, 0.0)
                squares[turn] = reward**2 + 2 * reward * means.get(later, 0.0) + squares.get(later, 0.0)
            by_node[node] = squares
        return by_node

    @cached_property
    def weights(self) -> dict[NodeKey, float]:
        """Node -> Π 1 / #children along the path to it; 1 at the root. The leaves' sum to 1."""
        weights = {ROOT: 1.0}
        for node, children in self.group_tree.children.items():  # parents come before their children
            weights |= dict.fromkeys(children, weights[node] / len(children))
        return weights


def by_turn(returns: Sequence[dict[int, float]]) -> dict[int, list[float]]:
    """Return turn -> what every node gets from it on; what has ended gets 0."""
    turns = {turn: None for of_node in returns for turn in of_node}
    return {turn: [of_node.get(turn, 0.0) for of_node in returns] for turn in turns}


def _means(returns: Sequence[dict[int, float]]) -> dict[int, float]:
    return {turn: statistics.fmean(values) for turn, values in by_turn(returns).items()}
