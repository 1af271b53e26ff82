"""The replay buffer: recorded trees with the step that added them and a priority.

Pure records: every change gives a new buffer. What is kept may be a whole tree, one episode, or the branches below a
node: `keep_leaves` cuts a tree down to some of its leaves.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from envgym.core.tree import Node, Tree
from envgym.errors import InvalidInput
from envgym.runs.directory import read_episode_table, read_object, write_episode_table
from envgym.runs.episodes import episode_rows, trees_of
from envgym.runs.files import write_json

_TREES, _ENTRIES = "trees.parquet", "entries.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEntry:
    """One recorded tree, with at least one ended leaf."""

    tree: Tree
    step: int
    """The train step that added it; 0 = before the first."""
    priority: float = 1.0
    """Weight of a draw, relative to the others, at least 0; what has 0 is never drawn."""

    def __post_init__(self) -> None:
        """Refuse a tree without an episode, and priorities that are no weights."""
        where = f"replay of tree {self.tree.id}"
        InvalidInput.unless(self.tree.leaves, "tree", "hold an ended episode", "none", where=where, do="leave it out")
        if not 0 <= self.priority < float("inf"):
            do = "give a weight"
            raise InvalidInput.of("priority", "be finite and at least 0", self.priority, where=where, do=do)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBuffer:
    """Entries in the order in which they were added; a tree's id is in it once."""

    entries: tuple[ReplayEntry, ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entries: Sequence[ReplayEntry], *, capacity: int) -> "ReplayBuffer":
        """Return the buffer with more entries; beyond `capacity` those of least priority leave, of them the oldest.

        An entry replaces that of the same tree id.
        """
        by_id = {entry.tree.id: entry for entry in entries}
        joined = [*(entry for entry in self.entries if entry.tree.id not in by_id), *by_id.values()]
        ranked = sorted(range(len(joined)), key=lambda number: (joined[number].priority, number))
        leaving = set(ranked[: max(len(joined) - capacity, 0)])
        return ReplayBuffer(entries=tuple(entry for number, entry in enumerate(joined) if number not in leaving))

    def younger(self, *, step: int, max_age: int | None) -> "ReplayBuffer":
        """Return the entries that were added at most `max_age` steps before `step`; None: all of them."""
        if max_age is None:
            return self
        return ReplayBuffer(entries=tuple(entry for entry in self.entries if step - entry.step <= max_age))

    def of_task(self, task_key: str) -> "ReplayBuffer":
        """Return the entries of one task."""
        return ReplayBuffer(entries=tuple(entry for entry in self.entries if entry.tree.task_key == task_key))

    def draw(self, count: int, rng: np.random.Generator) -> list[ReplayEntry]:
        """Return up to `count` different entries, drawn one after the other by priority."""
        drawable = [entry for entry in self.entries if entry.priority > 0]
        count = min(count, len(drawable))
        if not count:
            return []
        weights = np.array([entry.priority for entry in drawable])
        numbers = rng.choice(len(drawable), size=count, replace=False, p=weights / weights.sum())
        return [drawable[number] for number in numbers]

    def save(self, folder: Path) -> None:
        """Write the trees as episodes, and each entry's step and priority beside them."""
        rows = [row for entry in self.entries for row in episode_rows([entry.tree], step=entry.step)]
        write_episode_table(folder / _TREES, rows)
        entries = [[entry.tree.id, entry.step, entry.priority] for entry in self.entries]
        write_json(folder / _ENTRIES, {"entries": entries})

    @classmethod
    def load(cls, folder: Path) -> "ReplayBuffer":
        """Read what `save` wrote. Raises: RunError: a file cannot be read. ValueError: they do not belong together."""
        trees = {tree.id: tree for tree in trees_of(read_episode_table(folder / _TREES))}
        entries = read_object(folder / _ENTRIES)["entries"]
        if [name for name, _, _ in entries] != list(trees):
            raise ValueError(f"{len(trees)} trees beside {len(entries)} entries")
        return cls(
            entries=tuple(ReplayEntry(tree=trees[name], step=step, priority=weight) for name, step, weight in entries)
        )


def keep_leaves(tree: Tree, leaves: Collection[int], *, id: str) -> Tree:
    """Return the part of a tree that leads to some of its leaves, as a tree of its own.

    Args:
        tree: any.
        leaves: indices of ended leaves, at least one. One is an episode (a chain); those below a node are a branch.
        id: of the new tree.

    Raises: InvalidInput: there is none, or one of them is no leaf.
    """
    if not leaves or not set(leaves) <= set(tree.leaves):
        must, do = f"be some of {tree.leaves}", "name ended leaves"
        raise InvalidInput.of("leaves", must, tuple(leaves), where=f"tree {tree.id}", do=do)
    indices = sorted({node for leaf in leaves for node in tree.path(leaf)})
    number_of = {node: number for number, node in enumerate(indices)}
    nodes: list[Node] = []
    for index in indices:
        node = tree.nodes[index]
        nodes.append(node if node.parent is None else replace(node, parent=number_of[node.parent]))
    return replace(tree, id=id, nodes=tuple(nodes))
