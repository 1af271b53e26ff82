"""Sibling baseline: a node against the other children of its parent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.node_returns import NodeReturns, by_turn
from envgym.trainer.methods.credit.paths import ROOT, GroupTree, NodeKey
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit
from envgym.trainer.methods.requirements import Choices, Fault


class Sibling(GroupCredit):
    """Compare siblings: A(n) = L w(leaf) (Q(n) - mean over siblings s of Q(s)), Q(n) = r(n) + mean over children of Q.

    The first turns of a group's trees are siblings: all trees share the prompt. A node without siblings is compared
    with the siblings of the nearest node above that has some: with what they get from the same turn on, 0 where they
    have ended. If there is none either, A = 0. w(leaf) = Π 1 / #children along the path, so a branch weighs as much
    as the chain it splits; times the number L of leaves, the weights of a group's rows have mean 1. Rows train
    `per_path`.

    Where branching depends on the past alone, and with a group's loss divided by its leaves (`seq-mean-token-sum`),
    the gradient is unbiased. Groups of chains get `turn_grpo`'s advantages. Source: own.
    """

    def requires(self, choices: Choices) -> Fault | None:
        """Require that a row trains for each path: the weights share a node out among its rows already."""
        shared, do = choices.objective.shared_tokens, "set objective.shared_tokens=per_path"
        must = "be per_path with credit sibling, whose weights already account for shared tokens"
        return Fault.unless(shared == "per_path", "objective.shared_tokens", must, shared, do)

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        values = _Values(group_tree=GroupTree(group=group))
        paths = values.group_tree.paths
        credits: list[TrajectoryCredit] = []
        for episode, path in zip(group.valid, paths, strict=True):
            weight = len(paths) * values.weights[path[-1]]
            advantages = (0.0, *(weight * values.advantage(node) for node in path[1:]))
            credits.append(TrajectoryCredit(trajectory=episode, advantages=advantages))
        return tuple(credits)


@dataclass(frozen=True, kw_only=True)
class _Values(NodeReturns):
    """Returns of the nodes, and their differences from those of their siblings."""

    @cached_property
    def advantages(self) -> dict[NodeKey, dict[int, float]]:
        """Node with siblings -> turn -> what is paid from the turn on, minus the mean of the siblings."""
        by_node: dict[NodeKey, dict[int, float]] = {ROOT: {}}
        for siblings in self.group_tree.children.values():
            if len(siblings) > 1:
                compared = _against_others([self.returns[sibling] for sibling in siblings])
                by_node |= zip(siblings, compared, strict=True)
        return by_node

    def advantage(self, node: NodeKey) -> float:
        """Return Q of a node less its baseline; 0 where there is nothing to compare it with."""
        return self.advantages[self.branches[node]].get(self.turns[node], 0.0)


def _against_others(returns: Sequence[dict[int, float]]) -> list[dict[int, float]]:
    """Return for every node and turn the value minus the mean of the others' values; of two nodes or more."""
    differences: list[dict[int, float]] = [{} for _ in returns]
    for turn, values in by_turn(returns).items():
        for of_node, value in zip(differences, values, strict=True):
            others = math.fsum([*values, -value])  # exact: the others' own sum
            of_node[turn] = value - others / (len(values) - 1)
    return differences
