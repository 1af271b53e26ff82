"""What all search strategies share: their protocol, and the settings and flow of those that grow trees of branches."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, runtime_checkable

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.engine import RolloutContext, SearchTree
from envgym.agents.search.scorers import (
    ANSWER_SCORER,
    VALUE,
    VALUE_NAME,
    AnswerScorer,
    ValueFn,
    ValueScorer,
    choose_answer,
)
from envgym.agents.search.snapshots import Branching, resolve_branching
from envgym.agents.tables import KINDS
from envgym.config.plugins import Choice, PluginKind
from envgym.config.settings import Settings
from envgym.core.tree import Tree
from envgym.core.turns import Ending
from envgym.env import Env
from envgym.errors import SettingsError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

NO_FIRST_TURN = "no turn could begin after the reset"
NO_FURTHER_EPISODE = "further episodes repeat earlier ones, or spend nothing of the budget"
"""Why a tree may have fewer leaves than its group asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """By what the answer of a search is chosen."""

    by: str
    is_oracle: bool
    """True where that is hidden from the agent: such a result must be called oracle-selected."""
    uses_ending: bool = False
    """Whether an episode can be preferred because it ended, or because it ended before a limit of the search. Short
    episodes, often the successful ones, are more likely to do so: such a result must be called selected by ending."""


@runtime_checkable
class Strategy(Protocol):
    """Grows the trees of a group (training), or one tree with one chosen leaf (evaluation).

    Credits read the attributes `grows_trees`, `is_forking` and `backs_up_values` of its class, by default True.
    """

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

    def num_trees(self, group_size: int) -> int:
        """Return how many trees a group has. Raises: SettingsError: a group of that size cannot be made."""
        ...

    async def grow_tree(
        self, job: EpisodeJob, context: RolloutContext, *, group_size: int, abort: AbortHandle | None = None
    ) -> Tree:
        """Grow one tree of a group; its kept leaves are episodes of the group.

        Args:
            job: task, seeds and id of the tree.
            context: agent, policy and slots.
            group_size: episodes of the whole group.
            abort: by which all branches under way can be aborted; they stay in the tree with that ending.
        """
        ...

    async def answer(self, job: EpisodeJob, context: RolloutContext) -> Tree:
        """Grow one tree and keep one leaf, chosen by what the agent can observe unless the settings say otherwise."""
        ...


SEARCH: Final[PluginKind[Strategy]] = KINDS["search"]


class TreeStrategy(Settings, ABC):
    """Settings and flow of every strategy whose trees have several branches."""

    name: ClassVar[str]
    bound: ClassVar[str]
    """The setting that says when the search is over; None there: when its budget is spent."""
    is_forking: ClassVar[bool] = True
    """Whether branches begin inside episodes, so that the env must be forked or replayed."""

    branching: Branching = Branching.AUTO
    """How a branch gets its env: `fork` copies it, `replay` replays the recorded turns and verifies them."""
    deterministic: bool = True
    """Decide at points that do not depend on timing; False: as branches end, which never waits."""
    budget: SearchBudget = SearchBudget()
    """Most that may be spent on one task; trees have equal shares of it."""
    value: Choice | None = None
    """A `ValueFn`: `critic` with its `run`, or one of your own."""
    select: Choice = Choice(name="majority")
    """By what `answer` chooses: `majority`, `likelihood`, `value`, `reward` (which is hidden from the agent:
    oracle-selected), or an `AnswerScorer` of your own."""
    prefer_terminated: bool = False
    """`answer` chooses among the episodes that the env ended, if there are any. Where only success ends an episode,
    that is a choice by success: the result is called selected by ending."""

    @abstractmethod
    async def expand(self, tree: SearchTree, *, leaves: int | None) -> None:
        """Grow a tree that has begun; prune all but `leaves` of its leaves, None: prune nothing."""

    @property
    def selection(self) -> Selection:
        """How `answer` chooses."""
        by = self.select if self.select.name != VALUE_NAME or self.value is None else self.value
        uses_ending = self.prefer_terminated or self.budget.is_limited
        return Selection(by=by.name, is_oracle=self.answer_scorer.is_oracle, uses_ending=uses_ending)

    @cached_property
    def answer_scorer(self) -> AnswerScorer:
        """The scorer that `answer` chooses by. Raises: UnknownName, SettingsError: there is none."""
        if self.select.name != VALUE_NAME:
            return ANSWER_SCORER.build(self.select)
        if self.value_fn is None:
            do = "set value.name, or choose by majority or likelihood"
            raise SettingsError.of("select=value", "be used with a value", "none", where=self.name, do=do)
        return ValueScorer(self.value_fn)

    @cached_property
    def value_fn(self) -> ValueFn | None:
        """The `ValueFn` of the search. Raises: UnknownName, SettingsError: there is none of that name."""
        return None if self.value is None else VALUE.build(self.value)

    def check_tokenizer(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Refuse a policy whose tokens the `ValueFn` cannot read. Raises: InvalidInput."""
        if self.value_fn is not None:
            getattr(self.value_fn, "check_tokenizer", lambda _: None)(tokenizer)

    def num_trees(self, group_size: int) -> int:
        """Return how many trees a group has: one. Raises: SettingsError: a group of that size cannot be made."""
        do = "set rollout.group_size to at least 2"
        SettingsError.unless(group_size >= 2, "group", "hold at least 2 episodes", group_size, where=self.name, do=do)
        return 1

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        """Refuse a search without an end, an env or a group that does not fit, and a budget that is too small."""
        if agent.program is not None:
            reason = "the episodes of a tree begin with one prompt, and a program writes its own in each"
            if self.is_forking:
                reason = "the state of a program cannot be forked"
            must, do = f"be chain with agent.program: {reason}", "set search.name=chain"
            raise SettingsError.of("search", must, self.name, where="settings", do=do)
        if getattr(self, self.bound) is None and not self.budget.is_limited:
            do = "set its budget, such as budget.tokens_generated=4096"
            raise SettingsError.of(f"{self.bound}=None", "be used with a budget", "none", where=self.name, do=do)
        if self.is_forking:
            resolve_branching(env, self.branching, where=self.name)
        parts = 1 if group_size is None else self.num_trees(group_size)
        tokens = self.budget.tokens_generated
        if tokens is not None and tokens // parts < agent.max_turn_tokens:
            got = f"{tokens} generated tokens for {parts} tree{'s' if parts > 1 else ''}"
            must = f"hold at least one chain, and a turn alone may take {agent.max_turn_tokens} tokens"
            raise SettingsError.of("budget", must, got, where=self.name, do="raise it, or lower agent.max_turn_tokens")
        _ = self.answer_scorer  # refuses what cannot choose

    async def grow_tree(
        self, job: EpisodeJob, context: RolloutContext, *, group_size: int, abort: AbortHandle | None = None
    ) -> Tree:
        """Grow one tree of a group, with its share of the budget and of the leaves.

        An episode that the budget cuts ends as an aborted one: its reward is invalid, as the policy did not fail.
        """
        num_trees = self.num_trees(group_size)
        num_leaves = group_size // num_trees
        tree = SearchTree(
            job,
            context,
            branching=self.branching if self.is_forking else None,
            budget=self.budget.share(num_trees),
            ordered=self.deterministic,
            abort=abort,
            budget_ending=Ending.ERROR_ABORTED,
        )
        await self._grow(tree, leaves=num_leaves)
        if len(tree.kept_branches) < num_leaves:
            no_more = tree.shortfall or NO_FURTHER_EPISODE
            tree.shortfall = tree.stop_reason or (no_more if tree.root is not None else NO_FIRST_TURN)
        return tree.record()

    async def answer(self, job: EpisodeJob, context: RolloutContext) -> Tree:
        """Grow one tree and keep one leaf."""
        tree = SearchTree(
            job,
            context,
            branching=self.branching if self.is_forking else None,
            budget=self.budget,
            ordered=self.deterministic,
        )
        await self._grow(tree, leaves=None)
        branches = tree.finished_branches
        if branches:
            answer_branch = await choose_answer(branches, self.answer_scorer, prefer_terminated=self.prefer_terminated)
            for branch in branches:
                if branch is not answer_branch and branch.pruned is None:
                    branch.pruned = f"not chosen by {self.selection.by}"
            answer_branch.pruned = None
        return tree.record()

    async def _grow(self, tree: SearchTree, *, leaves: int | None) -> None:
        try:
            if await tree.begin() is not None:
                await self.expand(tree, leaves=leaves)
        finally:
            await tree.close()


async def run_concurrently(awaitables: Sequence[Awaitable[T]]) -> list[T]:
    """Await all; if one raises or this is cancelled, the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
