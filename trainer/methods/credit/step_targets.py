"""What a scorer of steps learns from searches and rollouts: no advantages, but targets of its values.

A step is a turn, and its value that of the prefix after it. Its target stands where `process_reward`, and a search with
the critic as its value, will ask for it: before the next sampled token; of a finished episode, before its last one.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from pydantic import Field

from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Tree
from envgym.core.turns import is_success
from envgym.trainer.methods.credit.paths import discounted_returns
from envgym.trainer.methods.protocols import CreditContext, GroupCredit, TrajectoryCredit

TurnKey = tuple[int, object]
"""What a turn is: the number of its history, and its action."""


class StepTargets(GroupCredit):
    """The base of both: each says only what the values of an episode's turns are."""

    trains_at_turn_ends: ClassVar[bool] = True
    """Whether the scorer can value a finished episode."""
    success_at: float = 1.0
    """Reward from which an episode counts as correct."""


class RestMcts(StepTargets):
    """Learn the quality values of a searched tree. Source: 2406.03816, and the authors' code.

    A correct leaf has d = 1, every node above one d = 1 + the smallest d below it, and such nodes are good. Every other
    node above a wrong leaf takes the d of the nearest node above it that is good. With v = 0 at the root,
    v = max(0, v_parent + (1 - v_parent) · s / d), s = 1 at good nodes, -1 at the others. A tree without a correct leaf
    teaches nothing. Use it with `search.name=mcts`.

    Deviation: a leaf is correct by the env's reward; the authors end leaves by the value model, too.
    """

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        credits: list[TrajectoryCredit] = []
        for group in groups:
            values = {
                tree.id: quality_values(tree, [item.leaf for item in _correct(group, tree, self.success_at)])
                for tree in group.trees
            }
            for episode in group.valid:
                of_tree = values[episode.tree.id]
                of_turns = [of_tree.get(nodes[-1]) for nodes in episode.turn_nodes]
                credits.append(target_credit(episode, of_tree.get(0), of_turns))
        return credits


class AgentPrm(StepTargets):
    """Learn the mean discounted outcome of a turn over the rollouts of a task. Source: 2502.10325.

    Q(s, a) is the mean of γ^{T-t} R over all visits of turn t of T, R = 1 where the episode is correct and -1 where it
    is not, mapped to [0, 1] by (Q + 1) / 2. Two turns are one where the task, all turns before and the action's content
    are equal; thinking is left out. Use it with `search.name=chain`, and as many episodes a group as you can.

    Deviations: the exponent is the paper's return to go (in the authors' code it counts from the start), and the fit is
    of the squared error, whose minimiser is that of the paper's cross entropy.
    """

    discount: float = Field(default=0.95, ge=0, le=1)
    """Discount per turn."""

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        return [entry for group in groups for entry in self._of_group(group)]

    def _of_group(self, group: Group) -> list[TrajectoryCredit]:
        visits: dict[TurnKey, list[float]] = defaultdict(list)
        keys = _turn_keys(group.valid)
        for episode, of_turns in zip(group.valid, keys, strict=True):
            outcome = 1.0 if is_success(episode.reward, self.success_at) else -1.0
            for key, value in zip(of_turns, returns_to_go(len(of_turns), outcome, self.discount), strict=True):
                visits[key].append(value)
        means = {key: math.fsum(values) / len(values) for key, values in visits.items()}
        return [
            target_credit(episode, None, [(means[key] + 1) / 2 for key in of_turns])
            for episode, of_turns in zip(group.valid, keys, strict=True)
        ]


# ---- values of steps, as pure functions ------------------------------------------------------------------------------


def quality_values(tree: Tree, correct: Sequence[int]) -> dict[int, float]:
    """Return ReST-MCTS*'s value of the root and of every step above an episode's end; nothing without a correct leaf.

    Args:
        tree: of turns; a node inside a turn is no step.
        correct: leaves.
    """
    if not correct:
        return {}
    paths = {leaf: _steps(tree, leaf) for leaf in tree.leaves}
    distances: dict[int, int] = {}
    for leaf in correct:
        for distance, node in enumerate(reversed(paths[leaf]), start=1):
            distances[node] = min(distance, distances.get(node, distance))
    values = {0: 0.0}
    for path in paths.values():
        nearest = distances[0]
        for above, node in pairwise(path):
            is_good = node in distances
            nearest = distances.get(node, nearest)
            gain = (1 - values[above]) / nearest
            values[node] = max(0.0, values[above] + (gain if is_good else -gain))
    return values


def returns_to_go(num_turns: int, outcome: float, discount: float) -> list[float]:
    """Return γ^{T-t} R for the turns t = 1..T."""
    return discounted_returns([*[0.0] * (num_turns - 1), outcome], discount) if num_turns else []


def _steps(tree: Tree, leaf: int) -> list[int]:
    """Return the root and the nodes at which a turn ended, on the way to a leaf, and the leaf."""
    return [node for node in tree.path(leaf) if node in (0, leaf) or tree.nodes[node].edge.ends_turn]


def _turn_keys(episodes: Sequence[Trajectory]) -> list[list[TurnKey]]:
    """Return for every turn all that was done and seen up to its action."""
    histories: dict[tuple[TurnKey, str | None], int] = {}
    turn_keys: list[list[TurnKey]] = []
    for episode in episodes:
        keys: list[TurnKey] = []
        history = 0
        for nodes, outcome in zip(episode.turn_nodes, episode.outcomes, strict=True):
            # A turn that was cut before the env replied is one with no other.
            action = None if outcome is None else repr((outcome.action.content, outcome.action.tool_calls))
            key = (history, (episode.tree.id, nodes[-1]) if action is None else action)
            keys.append(key)
            observation = None if outcome is None else str(outcome.observation)
            history = histories.setdefault((key, observation), len(histories) + 1)
        turn_keys.append(keys)
    return turn_keys


def _correct(group: Group, tree: Tree, success_at: float) -> list[Trajectory]:
    return [item for item in group.valid if item.tree is tree and is_success(item.reward, success_at)]


# ---- where targets stand ---------------------------------------------------------------------------------------------


def target_credit(episode: Trajectory, start: float | None, values: Sequence[float | None]) -> TrajectoryCredit:
    """Return a credit without advantages whose targets are the values of the prompt and of every turn.

    Args:
        episode: valid.
        start: value of the prompt; None: none is learned there.
        values: one for every turn; None: none is learned there.
    """
    targets: Mapping[int, list[float | None]] = {node: [None] * _num_sampled(episode, node) for node in episode.path}
    before = start
    last = len(episode.turn_nodes) - 1
    for turn, (nodes, value) in enumerate(zip(episode.turn_nodes, values, strict=True)):
        places = [(node, place) for node in nodes for place in range(len(targets[node]))]
        if places:
            targets[places[0][0]][places[0][1]] = before
            if turn == last and value is not None:
                targets[places[-1][0]][places[-1][1]] = value
        before = value
    return TrajectoryCredit(
        trajectory=episode,
        advantages=tuple(0.0 for _ in episode.path),
        targets=tuple(tuple(targets[node]) for node in episode.path),
    )


def _num_sampled(episode: Trajectory, node: int) -> int:
    return sum(len(segment) for segment in episode.tree.nodes[node].edge.segments if segment.trains)
