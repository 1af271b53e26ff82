"""`random_expand`: whole episodes, then more of them from places drawn among the turns so far. Source: 2509.21240.

M trees; each begins with one chain; in each of L rounds N places are drawn uniformly among all places at which a turn
begins (the root included), and an episode is continued from each; K of the 1 + N L leaves are kept, drawn uniformly.
A round draws no place twice before it has drawn all of them once. Leaves that infrastructure broke are kept last.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from pydantic import Field

from envgym.agents.agent import AgentSettings
from envgym.agents.search.base import TreeStrategy, together
from envgym.agents.search.branches import Branch
from envgym.agents.search.growth import Growth
from envgym.env import Env
from envgym.errors import SettingsError, sentence
from envgym.seeds import generator

T = TypeVar("T")

NOT_KEPT = "not among the kept leaves"


class Shape(NamedTuple):
    """Trees and kept leaves of a group."""

    trees: int
    keep: int


class RandomExpand(TreeStrategy):
    """Tree-GRPO's search."""

    name: ClassVar[str] = "random_expand"
    trees: int | None = Field(default=None, ge=1)
    """M; None: as many as the group needs."""
    nodes: int = Field(default=2, ge=1)
    """N: places that are drawn in a round."""
    rounds: int | None = Field(default=1, ge=1)
    """L; None: until the budget is spent."""
    keep: int | None = Field(default=None, ge=1)
    """K: leaves of a tree that are the group's; None: as many as the group needs, and all where `rounds` is None."""

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        """Refuse what cannot work. Raises: SettingsError."""
        if self.rounds is None and not self.budget.is_limited:
            do = "set search.budget, such as search.budget.tokens_generated=4096"
            raise SettingsError(sentence("rounds=None", "go with a budget", "none", where=self.name, do=do))
        super().check(env, agent, group_size=group_size)

    def shape(self, group_size: int) -> Shape:
        """Return how many trees there are, and how many leaves of each are kept: M K is the group's size.

        Raises: SettingsError: a group of one, or a size that no whole number of leaves makes up.
        """
        if group_size < 2:
            do = "set rollout.group_size to at least 2"
            raise SettingsError(sentence("group", "hold at least 2 episodes", group_size, where=self.name, do=do))
        most = group_size if self.rounds is None else 1 + self.nodes * self.rounds
        for keep in range(min(most, group_size), 0, -1):
            shape = Shape(group_size // keep, keep)
            fits = group_size % keep == 0 and self.trees in (None, shape.trees) and self.keep in (None, keep)
            if fits and (keep > 1 or shape in ((self.trees, 1), (group_size, self.keep))):
                return shape
        trees = "any number of" if self.trees is None else self.trees
        kept = f"2 to {most}" if self.keep is None else self.keep
        must, do = (
            f"be {trees} trees times {kept} kept leaves",
            "change rollout.group_size, or the search's trees or nodes",
        )
        raise SettingsError(sentence("group size", must, group_size, where=self.name, do=do))

    def num_trees(self, group_size: int) -> int:
        """Return M."""
        return self.shape(group_size).trees

    async def expand(self, growth: Growth, *, leaves: int | None) -> None:
        """Grow a tree; branches of one round run side by side, and no tree waits for another."""
        assert growth.root is not None, "the tree has begun"
        await growth.play(growth.branch(growth.root))
        await (self._in_rounds(growth) if self.deterministic else self._as_they_end(growth))
        if leaves is not None and self.rounds is not None:
            keep(growth, leaves)

    async def _in_rounds(self, growth: Growth) -> None:
        """Draw a round's places when all episodes of the round before it are over."""
        number = 0
        while number != self.rounds and not growth.purse.is_empty:
            places = draw(growth.places(), self.nodes, growth.job.sampling_seed, "round", number)
            await together([growth.play(branch) for branch in [growth.branch(place) for place in places]])
            number += 1

    async def _as_they_end(self, growth: Growth) -> None:
        """Keep N episodes under way, each from a place drawn among those there are when it begins."""
        most = None if self.rounds is None else self.nodes * self.rounds
        count = 0

        async def work() -> None:
            nonlocal count
            while count != most and not growth.purse.is_empty:
                number, count = count, count + 1
                (place,) = draw(growth.places(), 1, growth.job.sampling_seed, "draw", number)
                branch = await growth.play(growth.branch(place))
                if not branch.turns:
                    return

        await together([work() for _ in range(self.nodes)])


def draw(places: Sequence[T], count: int, *seed: int | str) -> list[T]:
    """Draw `count` places uniformly; none is drawn twice before all were drawn once."""
    numbers = generator(*seed)
    found: list[T] = []
    while len(found) < count:
        order = numbers.permutation(len(places))[: count - len(found)]
        found.extend(places[place] for place in order)
    return found


def keep(growth: Growth, count: int) -> None:
    """Keep `count` leaves, drawn uniformly among those that count, and mark the others as pruned."""
    leaves = growth.leaves
    order = generator(growth.job.sampling_seed, "keep").permutation(len(leaves))
    chosen = sorted((leaves[place] for place in order), key=_is_broken)[:count]
    for branch in leaves:
        if branch not in chosen:
            branch.pruned = NOT_KEPT


def _is_broken(branch: Branch) -> bool:
    """Return whether infrastructure ended the branch."""
    return branch.ending is not None and branch.ending.is_error
