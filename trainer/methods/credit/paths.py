"""What methods on nodes share: rewards and returns along a path, and which episodes hold a node.

Everything here reads valid episodes only. A node key names a node across the trees of a group.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from envgym.core.trajectory import Group, Trajectory
from envgym.core.turns import Scored
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit
from envgym.trainer.methods.requirements import Choices, Fault

NodeKey = tuple[int, int]
"""(number of the tree in its group, index of the node in the tree)."""

ROOT: NodeKey = (-1, 0)
"""The prompt, which all trees of a group share: their roots are one node."""


def turn_rewards(episode: Trajectory) -> list[float]:
    """Return the reward of each turn of a valid episode; 0 for a last turn that was cut before the env replied."""
    return [
        outcome.reward.value if outcome is not None and isinstance(outcome.reward, Scored) else 0.0
        for outcome in episode.outcomes
    ]


def discounted_returns(rewards: Sequence[float], discount: float = 1.0) -> list[float]:
    """Return the return from every turn on: R_t = r_t + discount R_{t+1}, 0 after the last."""
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + discount * following
        returns.append(following)
    return returns[::-1]


def turn_of_nodes(episode: Trajectory) -> tuple[int, ...]:
    """Return the turn that each node of the path belongs to; -1 for the root and for an ending without tokens."""
    turns = [turn for turn, nodes in enumerate(episode.turn_nodes) for _ in nodes]
    return (-1, *turns, *[-1] * (len(episode.path) - 1 - len(turns)))


def turn_credit(episode: Trajectory, advantages: Sequence[float]) -> TrajectoryCredit:
    """Put one advantage per turn on every sampled token of that turn."""
    by_node = [0.0 if turn < 0 else advantages[turn] for turn in turn_of_nodes(episode)]
    return TrajectoryCredit(trajectory=episode, advantages=tuple(by_node))


class TreeCredit(GroupCredit):
    """Settings of a credit that compares branches."""

    def requires(self, choices: Choices) -> Fault | None:
        """Require a search that grows trees: all advantages of chains would be 0."""
        must = "be used with a search that grows trees, as a chain has no branches to compare"
        do, got = "set search.name=random_expand, or credit=grpo", f"search {choices.names['search']}"
        grows_trees = getattr(choices.search, "grows_trees", True)
        return Fault.unless(grows_trees, f"credit {choices.names['credit']}", must, got, do)


@dataclass(frozen=True, kw_only=True)
class GroupTree:
    """The valid episodes of a group as one tree below the prompt; episodes are numbered as in `group.valid`."""

    group: Group

    @cached_property
    def tree_numbers(self) -> tuple[int, ...]:
        """The tree of every valid episode, as a number in the group."""
        numbers = [number for number, tree in enumerate(self.group.trees) for _ in tree.leaves]
        pairs = zip(numbers, self.group.trajectories, strict=True)
        return tuple(number for number, episode in pairs if episode.is_valid)

    @cached_property
    def paths(self) -> tuple[tuple[NodeKey, ...], ...]:
        """Every valid episode's nodes, from the common root to its leaf."""
        return tuple(
            (ROOT, *((number, node) for node in episode.path[1:]))
            for number, episode in zip(self.tree_numbers, self.group.valid, strict=True)
        )

    def credits(self, advantage: Callable[[NodeKey], float]) -> tuple[TrajectoryCredit, ...]:
        """Put one advantage per node on its sampled tokens, in every valid episode that holds it."""
        return tuple(
            TrajectoryCredit(trajectory=episode, advantages=(0.0, *map(advantage, path[1:])))
            for episode, path in zip(self.group.valid, self.paths, strict=True)
        )

    @cached_property
    def episodes_through(self) -> dict[NodeKey, tuple[int, ...]]:
        """Node -> the episodes whose paths hold it."""
        episodes: dict[NodeKey, list[int]] = {}
        for number, path in enumerate(self.paths):
            for node in path:
                episodes.setdefault(node, []).append(number)
        return {node: tuple(numbers) for node, numbers in episodes.items()}

    @cached_property
    def children(self) -> dict[NodeKey, tuple[NodeKey, ...]]:
        """Node -> the nodes right below it."""
        children: dict[NodeKey, dict[NodeKey, None]] = {}
        for path in self.paths:
            for above, below in pairwise(path):
                children.setdefault(above, {})[below] = None
        return {node: tuple(below) for node, below in children.items()}
