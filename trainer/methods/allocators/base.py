"""What allocators share: the episodes that are kept, and what is known of all that were drawn.

Whoever trains on some of a group's episodes needs the statistics of all: they stand on the root of every kept tree.
"""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Annotation, SearchStats, Tree
from envgym.core.turns import Scored
from envgym.errors import InvalidInput
from envgym.trainer.methods.protocols import TaskRequest

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
    return isinstance(episode.reward, Scored) and episode.reward.value > threshold


def with_draws(kept: Group, drawn: Group, *, threshold: float) -> Group:
    """Return the kept episodes, with what is known of all on each root; as they are where no episode is valid."""
    rewards = [reward.value for episode in drawn.valid if isinstance(reward := episode.reward, Scored)]
    if not rewards:
        return kept
    values = {
        DRAWS: float(len(rewards)),
        DRAWS_REWARD: statistics.fmean(rewards),
        SUCCESSES: float(sum(is_success(episode, threshold) for episode in drawn.valid)),
    }
    notes = tuple(Annotation(name=name, level="node", node=0, value=value) for name, value in values.items())
    return replace(kept, trees=tuple(replace(tree, annotations=(*tree.annotations, *notes)) for tree in kept.trees))


def draws_of(group: Group) -> Draws | None:
    """Return what an allocator wrote of all episodes that the group drew; None: it wrote nothing."""
    if not group.trees:
        return None
    notes = [group.trees[0].annotated(name, "node").get(0) for name in (DRAWS, DRAWS_REWARD, SUCCESSES)]
    values = [note.value for note in notes if note is not None and note.value is not None]
    return Draws(int(values[0]), values[1], int(values[2])) if len(values) == len(notes) else None


def keep_episodes(group: Group, episodes: Collection[Trajectory]) -> Group:
    """Return the group with these episodes and the invalid ones, which are counted; trees without one are left out."""
    invalid = [episode for episode in group.trajectories if not episode.is_valid]
    kept = {(episode.tree.id, episode.leaf) for episode in (*episodes, *invalid)}
    trees = (_without_others(tree, [leaf for leaf in tree.leaves if (tree.id, leaf) in kept]) for tree in group.trees)
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
    draws = [found for group in groups if (found := draws_of(group)) is not None]
    if not draws:
        return {}
    total = sum(found.num_episodes for found in draws)
    return {
        "collect/draws": float(total),
        "collect/draws_reward": sum(found.num_episodes * found.mean_reward for found in draws) / total,
    }


def task_hint(request: TaskRequest, key: str) -> str | None:
    """Return the hint in the metadata of a request's task; None: it has none. Raises: InvalidInput: it is no text."""
    assert request.task is not None, "an allocator is given the task"
    hint = request.task.metadata.get(key)
    if hint is not None and (not isinstance(hint, str) or not hint):
        where, do = f"task {request.task.id}, metadata {key}", "write a sentence, or leave it out"
        raise InvalidInput.of("hint", "be a text", hint, where=where, do=do)
    return hint
