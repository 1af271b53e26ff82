"""What all search strategies share: their protocol, their common settings, and how the trees of a group are grown."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from envgym.agents.agent import AgentSettings
from envgym.agents.episode import EpisodeJob
from envgym.agents.search.budget import Budget, check_budget
from envgym.agents.search.growth import Crew, Growth
from envgym.agents.search.snapshots import Branching, branching_of
from envgym.core.tree import Tree
from envgym.core.turns import Cost
from envgym.env import Env
from envgym.seeds import derive_seed
from envgym.settings import Settings

T = TypeVar("T")

Member = Callable[[int], EpisodeJob]
"""Job of the group's k-th tree: they begin alike, and differ in what the policy samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What a search made of one task."""

    trees: tuple[Tree, ...]
    spent: Cost
    """All that was spent, replays included."""


class Strategy(Protocol):
    """Grows the trees of one group."""

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int) -> None:
        """Refuse what cannot work, before anything is sampled. Raises: SettingsError."""
        ...

    async def grow(self, member: Member, crew: Crew, *, group_size: int) -> Grown:
        """Grow trees whose kept leaves are the group's episodes; one that failed is in them with its ending.

        Args:
            member: job of each tree.
            crew: who acts.
            group_size: episodes that are wanted.
        """
        ...


class TreeStrategy(Settings):
    """Settings of every strategy that begins branches inside an episode."""

    branching: Branching = Branching.AUTO
    """How a branch gets its env: `fork` copies it, `replay` plays the recorded turns again and verifies them."""
    deterministic: bool = True
    """Decide at points that do not depend on timing; False: as branches end, which waits for nobody."""
    budget: Budget = Budget()
    """Most that may be spent on one task; trees have equal shares of it."""

    def check_common(self, env: Env[Any], agent: AgentSettings, *, num_trees: int, where: str) -> None:
        """Refuse an env that cannot be branched, and a budget that is too small. Raises: SettingsError."""
        branching_of(env, self.branching, where=where)
        check_budget(self.budget, max_turn_tokens=agent.max_turn_tokens, parts=num_trees, where=where)

    async def grow_trees(
        self, member: Member, crew: Crew, num_trees: int, expand: Callable[[Growth], Awaitable[None]]
    ) -> Grown:
        """Grow all trees at once, each by `expand`."""
        share = self.budget.share(num_trees)

        async def one(number: int) -> tuple[Tree, Cost]:
            growth = Growth(member(number), crew, branching=self.branching, budget=share, ordered=self.deterministic)
            return await grown(growth, expand)

        found = await together([one(number) for number in range(num_trees)])
        return Grown(trees=tuple(tree for tree, _ in found), spent=sum((spent for _, spent in found), Cost()))


async def grown(growth: Growth, expand: Callable[[Growth], Awaitable[None]]) -> tuple[Tree, Cost]:
    """Begin a tree, expand it, and let go of its envs."""
    try:
        if await growth.begin() is not None:
            await expand(growth)
    finally:
        await growth.close()
    return growth.tree(), growth.purse.spent


async def together(work: Sequence[Awaitable[T]]) -> list[T]:
    """Await all; if one raises or this is cancelled, the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def members_of(job: EpisodeJob) -> Member:
    """Return the jobs of the trees that are grown for one job; tree k of id `t` has the id `t/k`."""

    def member(number: int) -> EpisodeJob:
        seed = derive_seed(job.sampling_seed, "member", number)
        return replace(job, policy_seed=seed, tree_id=f"{job.tree_id}/{number:02d}")

    return member
