"""`planned`: trees that branch at turns drawn before anything is sampled.

Source: own. Every path from the prompt to a leaf is, on its own, an episode as `chain` samples it, because where it
branches depends on nothing that is sampled there or later. With weights 1 / #children along the path, as the credit
`planned` has them, averages over the leaves are unbiased. An episode that ends before a turn of the plan does not
branch there, so a tree has at most Π `children` leaves; one with fewer says why (`shortfall`).
"""

from itertools import chain
from math import prod
from typing import ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from envgym.agents.search.branches import Branch, SearchState
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.protocol import TreeStrategy, run_concurrently
from envgym.errors import SettingsError
from envgym.seeds import generator

ENDED_BEFORE = "episodes ended before the turns at which they were to branch"
"""Why a tree has fewer leaves than its plan."""


class Level(NamedTuple):
    """One level of a plan."""

    turn: int
    """At which episodes branch, counted from 0."""
    num_children: int


class PlannedTrees(TreeStrategy):
    """Branch all episodes of a tree at the same turns, drawn from the seed beforehand."""

    name: ClassVar[str] = "planned"
    bound: ClassVar[str] = "children"
    backs_up_values: ClassVar[bool] = False

    trees: int | None = Field(default=None, ge=2)
    """M, at least 2: the first turns of a tree are compared with other trees; null: as many as the group needs."""
    children: tuple[int, ...] = Field(default=(2,), min_length=1)
    """Branches at each level, the episode that reached it included; as many levels as there are numbers."""
    turns: tuple[int, ...] | None = None
    """The turns of the levels, from 1 and ascending; null: drawn for each tree from `first_turn` to `last_turn`."""
    first_turn: int = Field(default=1, ge=1)
    """First turn that may be drawn."""
    last_turn: int = Field(default=6, ge=1)
    """Last turn that may be drawn; set it to where most episodes are still under way."""

    @model_validator(mode="after")
    def _check_plan(self) -> Self:
        """Refuse a level of one branch, and turns that the levels do not fit in."""
        num_levels = len(self.children)
        if min(self.children) < 2:
            raise ValueError(f"children must be at least 2 at every level, got {list(self.children)}")
        if self.turns is None and self.last_turn - self.first_turn + 1 < num_levels:
            got = f"{self.first_turn} to {self.last_turn}"
            raise ValueError(f"first_turn to last_turn must hold {num_levels} different turns, got {got}")
        if self.turns is not None:
            is_ascending = all(first < second for first, second in zip((0, *self.turns), self.turns, strict=False))
            if len(self.turns) != num_levels or not is_ascending:
                must = f"be {num_levels} ascending turns from 1 on, one for each entry of children"
                raise ValueError(f"turns must {must}, got {list(self.turns)}")
        return self

    @property
    def most_leaves(self) -> int:
        """Leaves of a tree in which every episode branches at every level."""
        return prod(self.children)

    def num_trees(self, group_size: int) -> int:
        """Return M. Raises: SettingsError: no whole number of trees, of at least 2, makes up the group."""
        num_trees, rest = divmod(group_size, self.most_leaves)
        if rest or num_trees < 2 or self.trees not in (None, num_trees):
            trees = "at least 2" if self.trees is None else self.trees
            must = f"be {trees} trees times {self.most_leaves} leaves"
            do = "change rollout.group_size, or the search's trees or children"
            raise SettingsError.of("group size", must, group_size, where=self.name, do=do)
        return num_trees

    def plan(self, *seed: int | str) -> tuple[Level, ...]:
        """Return the levels of a tree; equal seeds give equal plans."""
        turns = self.turns
        if turns is None:
            offsets = generator(*seed).permutation(self.last_turn - self.first_turn + 1)[: len(self.children)]
            turns = tuple(sorted(self.first_turn + int(offset) for offset in offsets))
        return tuple(Level(*level) for level in zip(turns, self.children, strict=True))

    async def expand(self, tree: SearchTree, *, leaves: int | None) -> None:
        """Grow a tree: the first episode, then the branches of the plan, those of one generation side by side."""
        assert tree.root is not None, "the tree has begun"
        plan = self.plan(tree.job.sampling_seed, "plan")
        first = tree.add_branch(tree.root)
        if self.deterministic:
            branches = [first]
            while branches:
                await run_concurrently([tree.run(branch) for branch in branches])
                branches = list(chain.from_iterable([self._branch(tree, branch, plan) for branch in branches]))
        else:
            await self._grow_from(tree, first, plan)
        if leaves is not None and not tree.is_stopped and len(tree.kept_branches) < leaves:
            tree.shortfall = ENDED_BEFORE

    async def _grow_from(self, tree: SearchTree, branch: Branch, plan: tuple[Level, ...]) -> None:
        await tree.run(branch)
        await run_concurrently([self._grow_from(tree, child, plan) for child in self._branch(tree, branch, plan)])

    @staticmethod
    def _branch(tree: SearchTree, branch: Branch, plan: tuple[Level, ...]) -> list[Branch]:
        """Begin the further children of the levels below a branch's own; it is itself the first child of each."""
        assert tree.root is not None, "the tree has begun"
        if tree.is_stopped:
            return []
        first_turn = tree.root.agent.num_turns  # of a recorded prefix, which the plan does not count
        starts: dict[int, SearchState] = {
            turn.start.agent.num_turns - first_turn: turn.start
            for turn in branch.turns
            if turn.start is not branch.start and turn.start.snapshot is not None
        }
        return [
            tree.add_branch(starts[level.turn])
            for level in plan
            if level.turn in starts
            for _ in range(level.num_children - 1)
        ]
