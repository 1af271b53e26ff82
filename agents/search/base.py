"""What all search strategies share: their protocol, their common settings, and how the trees of a group are grown."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from envgym.agents.agent import AgentSettings
from envgym.agents.episode import EpisodeJob
from envgym.agents.search.budget import Budget, check_budget
from envgym.agents.search.growth import Crew, Growth
from envgym.agents.search.signals import Hook, Signal, ValueFn, check_tokenizer, choose, signal
from envgym.agents.search.snapshots import Branching, branching_of
from envgym.core.tree import Tree
from envgym.core.turns import Cost
from envgym.env import Env
from envgym.seeds import derive_seed
from envgym.settings import Settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

Member = Callable[[int], EpisodeJob]
"""Job of the group's k-th tree: they begin alike, and differ in what the policy samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What a search made of one task."""

    trees: tuple[Tree, ...]
    spent: Cost
    """All that was spent, replays included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """By what the answer of a search is chosen."""

    by: str
    is_oracle: bool
    """True where it knows what no agent can see: such a result must be called oracle-selected."""


@runtime_checkable
class Strategy(Protocol):
    """Grows the trees of one group (training), or one tree with one chosen leaf (evaluation)."""

    @property
    def selection(self) -> Selection | None:
        """How `answer` chooses; None where there is nothing to choose."""
        ...

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        """Refuse what cannot work, before anything is sampled. Raises: SettingsError.

        Args:
            env: one of those that are searched.
            agent: its limits.
            group_size: episodes of a group; None: trees are to `answer`.
        """
        ...

    async def grow(self, member: Member, crew: Crew, *, group_size: int) -> Grown:
        """Grow trees whose kept leaves are the group's episodes; one that failed is in them with its ending.

        Args:
            member: job of each tree.
            crew: who acts.
            group_size: episodes that are wanted.
        """
        ...

    async def answer(self, job: EpisodeJob, crew: Crew) -> Tree:
        """Grow one tree and keep one leaf, chosen by what the agent can see unless the settings say otherwise."""
        ...


class TreeStrategy(Settings, ABC):
    """Settings and flow of every strategy that grows several episodes in one tree."""

    name: ClassVar[str]
    is_forking: ClassVar[bool] = True
    """Whether branches begin inside episodes, so that the env must be forked or replayed."""

    branching: Branching = Branching.AUTO
    """How a branch gets its env: `fork` copies it, `replay` plays the recorded turns again and verifies them."""
    deterministic: bool = True
    """Decide at points that do not depend on timing; False: as branches end, which waits for nobody."""
    budget: Budget = Budget()
    """Most that may be spent on one task; trees have equal shares of it."""
    select: str = "majority"
    """By what `answer` chooses: `majority`, `likelihood`, `package.module:name` of a `ValueFn` (`:text` behind it is
    given to it), or `verifier` (the reward, which no agent can see: oracle-selected)."""

    @abstractmethod
    def num_trees(self, group_size: int) -> int:
        """Return how many trees a group has. Raises: SettingsError: a group of that size cannot be made."""

    @abstractmethod
    async def expand(self, growth: Growth, *, leaves: int | None) -> None:
        """Grow a tree that has begun; prune all but `leaves` of its leaves, None: nothing is pruned."""

    @property
    def selection(self) -> Selection:
        """How `answer` chooses."""
        return Selection(by=self.select, is_oracle=self.signal().is_oracle)

    def signal(self) -> Signal:
        """Return what chooses. Raises: UnknownName, SettingsError: there is no such signal."""
        return signal(self.select)

    def value_fns(self) -> list[ValueFn]:
        """Return those that are asked. Raises: SettingsError: there is no such."""
        chooses = self.signal()
        return [chooses.value] if isinstance(chooses, Hook) else []

    def check_tokenizer(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Refuse a policy whose tokens a `ValueFn` cannot read. Raises: InvalidInput."""
        for value in self.value_fns():
            check_tokenizer(value, tokenizer)

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        """Refuse an env that cannot be branched, a group that cannot be made, and a budget that is too small."""
        if self.is_forking:
            branching_of(env, self.branching, where=self.name)
        parts = 1 if group_size is None else self.num_trees(group_size)
        check_budget(self.budget, max_turn_tokens=agent.max_turn_tokens, parts=parts, where=self.name)
        self.signal()

    async def grow(self, member: Member, crew: Crew, *, group_size: int) -> Grown:
        """Grow all trees at once; none waits for another."""
        num_trees = self.num_trees(group_size)
        share = self.budget.share(num_trees)

        async def one(number: int) -> tuple[Tree, Cost]:
            growth = self._growth(member(number), crew, share)
            await self._grown(growth, leaves=group_size // num_trees)
            return growth.tree(), growth.purse.spent

        found = await together([one(number) for number in range(num_trees)])
        return Grown(trees=tuple(tree for tree, _ in found), spent=sum((spent for _, spent in found), Cost()))

    async def answer(self, job: EpisodeJob, crew: Crew) -> Tree:
        """Grow one tree and keep one leaf."""
        growth = self._growth(job, crew, self.budget)
        await self._grown(growth, leaves=None)
        if growth.leaves:
            chosen = await choose(growth.leaves, self.signal())
            for branch in growth.leaves:
                if branch is not chosen and branch.pruned is None:
                    branch.pruned = f"not chosen by {self.selection.by}"
            chosen.pruned = None
        return growth.tree()

    def _growth(self, job: EpisodeJob, crew: Crew, budget: Budget) -> Growth:
        branching = self.branching if self.is_forking else None
        return Growth(job, crew, branching=branching, budget=budget, ordered=self.deterministic)

    async def _grown(self, growth: Growth, *, leaves: int | None) -> None:
        """Begin a tree, expand it, and let go of its envs."""
        try:
            if await growth.begin() is not None:
                await self.expand(growth, leaves=leaves)
        finally:
            await growth.close()


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
