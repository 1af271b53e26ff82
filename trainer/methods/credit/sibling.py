"""Sibling baseline: a node against the other children of its parent."""

import statistics
from dataclasses import dataclass
from functools import cached_property

from envgym.core.rewards import Scored
from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.paths import ROOT, Branches, Place, node_turns
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
        values = _Values(branches=Branches(group=group))
        paths = values.branches.paths
        return tuple(
            TrajectoryCredit(
                trajectory=episode,
                advantages=(0.0, *(len(paths) * values.weight(path) * values.advantage(place) for place in path[1:])),
            )
            for episode, path in zip(group.valid, paths, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class _Values:
    """Means over the branches of a group, counted from a turn on."""

    branches: Branches

    @cached_property
    def parents(self) -> dict[Place, Place]:
        """Place -> the place above it."""
        return {below: above for above, found in self.branches.children.items() for below in found}

    @cached_property
    def turns(self) -> dict[Place, int]:
        """Place -> its turn."""
        return {
            place: turn
            for episode, path in zip(self.branches.group.valid, self.branches.paths, strict=True)
            for place, turn in zip(path, node_turns(episode), strict=True)
        }

    @cached_property
    def returns(self) -> dict[Place, dict[int, float]]:
        """Place -> turn t -> what is paid from turn t on, here and below, the mean over children at every branch."""
        found: dict[Place, dict[int, float]] = {}
        for place in sorted(self.parents, key=lambda place: -place[1]):  # children stand behind their parents
            below = [found[child] for child in self.branches.children.get(place, ())]
            last = max((max(child, default=-1) for child in below), default=-1)
            mine = self.turns[place]
            found[place] = {
                turn: self._paid(place, turn) + statistics.fmean([child.get(turn, 0.0) for child in below] or [0.0])
                for turn in range(max(mine, last) + 1)
            }
        return found

    def _paid(self, place: Place, turn: int) -> float:
        """Return what the node itself paid, if that was in turn `turn` or later."""
        number, node = place
        outcome = self.branches.group.trees[number].nodes[node].outcome
        is_due = outcome is not None and self.turns[place] >= turn
        return outcome.reward.value if is_due and outcome and isinstance(outcome.reward, Scored) else 0.0

    def weight(self, path: tuple[Place, ...]) -> float:
        """Return Π 1 / #children along a path."""
        weight = 1.0
        for place in path[:-1]:
            weight /= len(self.branches.children[place])
        return weight

    def advantage(self, place: Place) -> float:
        """Return Q of a node less its baseline; 0 where there is nothing to compare it with."""
        turn, branch = self.turns[place], place
        while len(siblings := self.branches.children[self.parents[branch]]) == 1:
            branch = self.parents[branch]
            if branch == ROOT:
                return 0.0
        others = [self.returns[sibling].get(turn, 0.0) for sibling in siblings if sibling != branch]
        return self.returns[place].get(turn, 0.0) - statistics.fmean(others)
