"""What allocators share: the episodes that are kept, and what is known of all that were drawn.

Whoever trains on some of a group's episodes needs the statistics of all: they stand on the root of every kept tree.
"""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Annotation, SearchStats, Tree
from envgym.core.turns import Scored, reaches

DRAWS, DRAWS_REWARD, SUCCESSES = "draws", "draws_reward", "draws_successes"
"""Annotations of a tree's root: the valid episodes that its group drew, their mean reward, and how many succeeded."""
NOT_KEPT = "not among the episodes that the allocator kept"


class Draws(NamedTuple):
    """The valid episodes that a group drew."""

    num_episodes: int
    mean_reward: float
    num_successes: int

    @property
    def rate(self) -> float:
        """Share that succeeded."""
        return self.num_successes / self.num_episodes


def is_success(episode: Trajectory, threshold: float) -> bool:
    """Return whether an episode is valid and its reward above `threshold`."""
    return isinstance(episode.reward, Scored) and not reaches(threshold, episode.reward.value)


def with_draws(group: Group, draws: Group, *, threshold: float) -> Group:
    """Return the kept episodes, with what is known of all on each root; as they are where no episode is valid."""
    rewards = [reward.value for episode in draws.valid if isinstance(reward := episode.reward, Scored)]
    if not rewards:
        return group
    values = {
        DRAWS: float(len(rewards)),
        DRAWS_REWARD: statistics.fmean(rewards),
        SUCCESSES: float(sum(is_success(episode, threshold) for episode in draws.valid)),
    }
    notes = tuple(Annotation(name=name, level="node", node=0, value=value) for name, value in values.items())
    return replace(group, trees=tuple(replace(tree, annotations=(*tree.annotations, *notes)) for tree in group.trees))


def draws_of(group: Group) -> Draws | None:
    """Return an allocator's record of all episodes that the group drew; None: it wrote none."""
    if not group.trees:
        return None
    notes = [group.trees[0].annotated(name, "node").get(0) for name in (DRAWS, DRAWS_REWARD, SUCCESSES)]
    values = [note.value for note in notes if note is not None and note.value is not None]
    return Draws(int(values[0]), values[1], int(values[2])) if len(values) == len(notes) else None


def keep_episodes(group: Group, episodes: Collection[Trajectory]) -> Group:
    """Return the group with these episodes and the invalid ones, which are counted; trees without one are left out."""
    invalid = [episode for episode in group.trajectories if not episode.is_valid]
    leaves = {(episode.tree.id, episode.leaf) for episode in (*episodes, *invalid)}
    trees = (_without_others(tree, [leaf for leaf in tree.leaves if (tree.id, leaf) in leaves]) for tree in group.trees)
    return replace(group, trees=tuple(tree for tree in trees if tree is not None))


def without_episode(group: Group, episode: Trajectory) -> Group:
    """Return the group without one of its episodes; the others of its tree stay."""
    left = [leaf for leaf in episode.tree.leaves if leaf != episode.leaf]
    trees = (_without_others(tree, left) if tree is episode.tree else tree for tree in group.trees)
    return replace(group, trees=tuple(tree for tree in trees if tree is not None))


def _without_others(tree: Tree, leaves: Sequence[int]) -> Tree | None:
    if not leaves or len(leaves) == len(tree.leaves):
        return tree if leaves else None
    nodes = list(tree.nodes)
    for leaf in set(tree.leaves) - set(leaves):
        nodes[leaf] = replace(nodes[leaf], stats=replace(nodes[leaf].stats or SearchStats(), pruned=NOT_KEPT))
    return replace(tree, nodes=tuple(nodes))


def draw_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return how many episodes the groups drew in all, and the mean of their rewards; nothing without an allocator."""
    draws = [draw for group in groups if (draw := draws_of(group)) is not None]
    if not draws:
        return {}
    total = sum(draw.num_episodes for draw in draws)
    return {
        "collect/draws": float(total),
        "collect/draws_reward": sum(draw.num_episodes * draw.mean_reward for draw in draws) / total,
    }
