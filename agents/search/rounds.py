"""Searches in rounds: one whole episode per tree, then more of them from states that a rule decides on, then a choice.

M trees; L rounds of N decisions each; every decision begins so many branches, each run to its end. K leaves of each
tree are kept, drawn uniformly; those that failed are kept last.
"""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import count
from typing import ClassVar, NamedTuple

from pydantic import Field

from envgym.agents.search.branches import Branch
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.protocol import TreeStrategy, run_concurrently
from envgym.agents.search.scorers import has_failed
from envgym.errors import SettingsError
from envgym.seeds import generator

NOT_KEPT = "not among the kept leaves"


class GroupShape(NamedTuple):
    """Trees of a group, and kept leaves of each."""

    num_trees: int
    num_kept: int


class RoundStrategy(TreeStrategy):
    """Settings and flow of a search in rounds."""

    bound: ClassVar[str] = "rounds"
    backs_up_values: ClassVar[bool] = False
    trees: int | None = Field(default=None, ge=1)
    """M; null: as many as the group needs."""
    nodes: int = Field(default=2, ge=1)
    """N: decisions of a round."""
    rounds: int | None = Field(default=1, ge=1)
    """L; null: until the budget is spent, or a round spends nothing of it."""
    keep: int | None = Field(default=None, ge=1)
    """K: leaves of a tree that are the group's; null: as many as the group needs, and all where `rounds` is null."""

    @abstractmethod
    def decide(self, tree: SearchTree, count: int, number: int) -> list[Branch]:
        """Begin the branches of `count` decisions on the tree as it is; `number` counts the rounds or decisions."""

    @property
    def branches_per_decision(self) -> int:
        """Branches of one decision."""
        return 1

    def num_trees(self, group_size: int) -> int:
        return self.group_shape(group_size).num_trees

    def group_shape(self, group_size: int) -> GroupShape:
        """Return how many trees there are, and how many leaves of each are kept: M K is the group's size.

        Raises: SettingsError: a group of one, or a size that no whole number of leaves makes up.
        """
        super().num_trees(group_size)  # refuses a group of one
        most = group_size if self.rounds is None else 1 + self.nodes * self.branches_per_decision * self.rounds
        for num_kept in range(min(most, group_size), 0, -1):
            shape = GroupShape(group_size // num_kept, num_kept)
            fits = (
                group_size % num_kept == 0 and self.trees in (None, shape.num_trees) and self.keep in (None, num_kept)
            )
            if fits and (num_kept > 1 or shape in ((self.trees, 1), (group_size, self.keep))):
                return shape
        trees = "any number of" if self.trees is None else self.trees
        leaves = f"2 to {most}" if self.keep is None else self.keep
        must = f"be {trees} trees times {leaves} kept leaves"
        do = "change rollout.group_size, or the search's trees or nodes"
        raise SettingsError.of("group size", must, group_size, where=self.name, do=do)

    async def expand(self, tree: SearchTree, *, leaves: int | None) -> None:
        """Grow a tree; branches of one round run side by side, and no tree waits for another."""
        assert tree.root is not None, "the tree has begun"
        await tree.run(tree.add_branch(tree.root))
        # Either one line of whole rounds, or N lines of single decisions, each on the tree as it is by then.
        size, num_lines = (self.nodes, 1) if self.deterministic else (1, self.nodes)
        numbers = count() if self.rounds is None else iter(range(self.rounds * num_lines))
        lines = [self._decide_in_turn(tree, size, numbers) for _ in range(num_lines)]
        await (lines[0] if num_lines == 1 else run_concurrently(lines))
        if leaves is not None and self.rounds is not None:
            keep_leaves(tree, leaves)

    async def _decide_in_turn(self, tree: SearchTree, size: int, numbers: Iterator[int]) -> None:
        """Make `size` decisions for each number, the next ones when the episodes of these have ended."""
        for number in numbers:
            used = tree.tracker.used
            if tree.is_stopped:
                return
            await run_concurrently([tree.run(branch) for branch in self.decide(tree, size, number)])
            if self.rounds is None and used == tree.tracker.used:
                return


def keep_leaves(tree: SearchTree, count: int) -> None:
    """Keep `count` leaves, drawn uniformly among those that did not fail, and prune the others."""
    leaves = tree.kept_branches
    order = generator(tree.job.sampling_seed, "keep").permutation(len(leaves))
    remaining = sorted((leaves[index] for index in order), key=has_failed)[:count]
    for branch in leaves:
        if branch not in remaining:
            branch.pruned = NOT_KEPT
