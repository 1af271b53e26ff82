"""Searches in rounds: one whole episode per tree, then more of them from places that a rule decides on, then a choice.

M trees; L rounds of N decisions each; every decision begins so many branches, each played to its end. K leaves of each
tree are kept, drawn uniformly; those that infrastructure broke are kept last.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

from pydantic import Field

from envgym.agents.agent import AgentSettings
from envgym.agents.search.base import TreeStrategy, together
from envgym.agents.search.branches import Branch
from envgym.agents.search.growth import Growth
from envgym.env import Env
from envgym.errors import SettingsError, sentence
from envgym.seeds import generator

NOT_KEPT = "not among the kept leaves"


class Shape(NamedTuple):
    """Trees and kept leaves of a group."""

    trees: int
    keep: int


class Expanding(TreeStrategy):
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
    def decide(self, growth: Growth, count: int, number: int) -> list[Branch]:
        """Begin the branches of `count` decisions on the tree as it is; `number` counts the rounds or decisions."""

    @property
    def branches_each(self) -> int:
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
        return self.shape(group_size).trees

    def shape(self, group_size: int) -> Shape:
        """Return how many trees there are, and how many leaves of each are kept: M K is the group's size.

        Raises: SettingsError: a group of one, or a size that no whole number of leaves makes up.
        """
        if group_size < 2:
            do = "set rollout.group_size to at least 2"
            raise SettingsError(sentence("group", "hold at least 2 episodes", group_size, where=self.name, do=do))
        most = group_size if self.rounds is None else 1 + self.nodes * self.branches_each * self.rounds
        for keep in range(min(most, group_size), 0, -1):
            shape = Shape(group_size // keep, keep)
            fits = group_size % keep == 0 and self.trees in (None, shape.trees) and self.keep in (None, keep)
            if fits and (keep > 1 or shape in ((self.trees, 1), (group_size, self.keep))):
                return shape
        trees = "any number of" if self.trees is None else self.trees
        kept = f"2 to {most}" if self.keep is None else self.keep
        must = f"be {trees} trees times {kept} kept leaves"
        do = "change rollout.group_size, or the search's trees or nodes"
        raise SettingsError(sentence("group size", must, group_size, where=self.name, do=do))

    async def expand(self, growth: Growth, *, leaves: int | None) -> None:
        """Grow a tree; branches of one round run side by side, and no tree waits for another."""
        assert growth.root is not None, "the tree has begun"
        await growth.play(growth.branch(growth.root))
        await (self._in_rounds(growth) if self.deterministic else self._as_they_end(growth))
        if leaves is not None and self.rounds is not None:
            keep(growth, leaves)

    async def _in_rounds(self, growth: Growth) -> None:
        """Decide on a round when all episodes of the round before it are over."""
        number, used = 0, None
        while number != self.rounds and not growth.purse.is_empty and (self.rounds or used != growth.purse.used):
            used = growth.purse.used
            await together([growth.play(branch) for branch in self.decide(growth, self.nodes, number)])
            number += 1

    async def _as_they_end(self, growth: Growth) -> None:
        """Keep the branches of N decisions under way, each decided on the tree as it is by then."""
        most = None if self.rounds is None else self.nodes * self.rounds
        count = 0

        async def work() -> None:
            nonlocal count
            while count != most and not growth.purse.is_empty:
                number, count, used = count, count + 1, growth.purse.used
                await together([growth.play(branch) for branch in self.decide(growth, 1, number)])
                if most is None and used == growth.purse.used:
                    return

        await together([work() for _ in range(self.nodes)])


def keep(growth: Growth, count: int) -> None:
    """Keep `count` leaves, drawn uniformly among those that count, and mark the others as pruned."""
    leaves = [branch for branch in growth.leaves if branch.pruned is None]
    order = generator(growth.job.sampling_seed, "keep").permutation(len(leaves))
    chosen = sorted((leaves[place] for place in order), key=_is_broken)[:count]
    for branch in leaves:
        if branch not in chosen:
            branch.pruned = NOT_KEPT


def _is_broken(branch: Branch) -> bool:
    """Return whether infrastructure ended the branch."""
    return branch.ending is not None and branch.ending.is_error
