"""Searches in rounds: one whole episode per tree, then more of them from states that a rule decides on, then a choice.

M trees; L rounds of N decisions each; every decision begins so many branches, each run to its end. K leaves of each
tree are kept, drawn uniformly; those that failed are kept last.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

from pydantic import Field

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.search.branches import Branch
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.protocol import TreeStrategy, run_concurrently
from envgym.agents.search.scorers import has_failed
from envgym.env import Env
from envgym.errors import SettingsError, sentence
from envgym.seeds import generator

NOT_KEPT = "not among the kept leaves"


class GroupShape(NamedTuple):
    """Trees of a group, and kept leaves of each."""

    num_trees: int
    num_kept: int


class RoundStrategy(TreeStrategy):
    """Settings and flow of a search in rounds."""

    trees: int | None = Field(default=None, ge=1)
    """M; None: as many as the group needs."""
    nodes: int = Field(default=2, ge=1)
    """N: decisions of a round."""
    rounds: int | None = Field(default=1, ge=1)
    """L; None: until the budget is spent, or a round spends nothing of it."""
    keep: int | None = Field(default=None, ge=1)
    """K: leaves of a tree that are the group's; None: as many as the group needs, and all where `rounds` is None."""

    @abstractmethod
    def decide(self, tree: SearchTree, count: int, number: int) -> list[Branch]:
        """Begin the branches of `count` decisions on the tree as it is; `number` counts the rounds or decisions."""

    @property
    def branches_per_decision(self) -> int:
        """Branches of one decision."""
        return 1

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        """Refuse what cannot work. Raises: SettingsError."""
        if self.rounds is None and not self.budget.is_limited:
            do = "set its budget, such as budget.tokens_generated=4096"
            raise SettingsError(sentence("rounds=None", "go with a budget", "none", where=self.name, do=do))
        super().check(env, agent, group_size=group_size)

    def num_trees(self, group_size: int) -> int:
        """Return M."""
        return self.group_shape(group_size).num_trees

    def group_shape(self, group_size: int) -> GroupShape:
        """Return how many trees there are, and how many leaves of each are kept: M K is the group's size.

        Raises: SettingsError: a group of one, or a size that no whole number of leaves makes up.
        """
        if group_size < 2:
            do = "set rollout.group_size to at least 2"
            raise SettingsError(sentence("group", "hold at least 2 episodes", group_size, where=self.name, do=do))
        most = group_size if self.rounds is None else 1 + self.nodes * self.branches_per_decision * self.rounds
        for num_kept in range(min(most, group_size), 0, -1):
            shape = GroupShape(group_size // num_kept, num_kept)
            fits = (
                group_size % num_kept == 0 and self.trees in (None, shape.num_trees) and self.keep in (None, num_kept)
            )
            if fits and (num_kept > 1 or shape in ((self.trees, 1), (group_size, self.keep))):
                return shape
        trees = "any number of" if self.trees is None else self.trees
        kept = f"2 to {most}" if self.keep is None else self.keep
        must = f"be {trees} trees times {kept} kept leaves"
        do = "change rollout.group_size, or the search's trees or nodes"
        raise SettingsError(sentence("group size", must, group_size, where=self.name, do=do))

    async def expand(self, tree: SearchTree, *, leaves: int | None) -> None:
        """Grow a tree; branches of one round run side by side, and no tree waits for another."""
        assert tree.root is not None, "the tree has begun"
        await tree.run(tree.add_branch(tree.root))
        await (self._in_rounds(tree) if self.deterministic else self._as_they_end(tree))
        if leaves is not None and self.rounds is not None:
            keep_leaves(tree, leaves)

    async def _in_rounds(self, tree: SearchTree) -> None:
        """Decide on a round when all episodes of the round before have ended."""
        number, used = 0, None
        while number != self.rounds and not tree.is_stopped and (self.rounds or used != tree.tracker.used):
            used = tree.tracker.used
            await run_concurrently([tree.run(branch) for branch in self.decide(tree, self.nodes, number)])
            number += 1

    async def _as_they_end(self, tree: SearchTree) -> None:
        """Keep the branches of N decisions under way, each decided on the tree as it is by then."""
        most = None if self.rounds is None else self.nodes * self.rounds
        count = 0

        async def work() -> None:
            nonlocal count
            while count != most and not tree.is_stopped:
                number, count, used = count, count + 1, tree.tracker.used
                await run_concurrently([tree.run(branch) for branch in self.decide(tree, 1, number)])
                if most is None and used == tree.tracker.used:
                    return

        await run_concurrently([work() for _ in range(self.nodes)])


def keep_leaves(tree: SearchTree, count: int) -> None:
    """Keep `count` leaves, drawn uniformly among those that did not fail, and prune the others."""
    leaves = tree.kept_branches
    order = generator(tree.job.sampling_seed, "keep").permutation(len(leaves))
    chosen = sorted((leaves[index] for index in order), key=has_failed)[:count]
    for branch in leaves:
        if branch not in chosen:
            branch.pruned = NOT_KEPT
