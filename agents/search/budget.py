"""A counted budget: how much one search may spend, and which branch may start a turn while others are under way.

A turn starts only where everything that comes before it leaves something of the budget, so a budget is exceeded by
less than one turn. What comes before a turn is either fixed (`ordered`: turn by turn, and branch by branch within a
turn, so the outcome does not depend on timing) or what was admitted earlier.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property

from pydantic import Field

from envgym.agents.loop.agent import AgentSettings
from envgym.config.settings import Settings
from envgym.core.turns import Cost

_NOTHING = Cost()


class SearchBudget(Settings):
    """Most that one search may spend on one task; None: no limit."""

    tokens_generated: int | None = Field(default=None, ge=1)
    """Tokens that the policy samples."""
    tokens_prefilled: int | None = Field(default=None, ge=1)
    """Tokens that the policy reads."""
    tool_calls: int | None = Field(default=None, ge=1)
    """Calls of tools."""
    env_steps: int | None = Field(default=None, ge=1)
    """Steps that verify a replay count as well."""
    seconds: float | None = Field(default=None, gt=0)
    """Time spent in calls of policy and env, added up; the turns under way may exceed it, and who is cut depends on
    timing."""

    @cached_property
    def limits(self) -> dict[str, float]:
        """What is limited -> its limit."""
        return self.model_dump(exclude_none=True)

    @property
    def is_limited(self) -> bool:
        """True where anything is limited."""
        return bool(self.limits)

    def share(self, parts: int) -> "SearchBudget":
        """Return one of `parts` equal shares, counts rounded down but to at least 1."""
        shares = {
            name: limit / parts if name == "seconds" else max(limit // parts, 1) for name, limit in self.limits.items()
        }
        return SearchBudget.model_validate(shares)

    def is_spent(self, cost: Cost) -> bool:
        """Return whether `cost` has reached a limit."""
        return any(getattr(cost, name) >= limit for name, limit in self.limits.items())


def largest_turn_cost(agent: AgentSettings) -> Cost:
    """Return the largest cost of one turn; a call takes at least a token to write, and seconds have no bound."""
    return Cost(
        tokens_generated=agent.max_turn_tokens,
        tokens_prefilled=agent.max_context_tokens,
        tool_calls=agent.max_turn_tokens,
        env_steps=1,
    )


@dataclass(slots=True, eq=False)
class _BranchCosts:
    number: int
    replay: Cost
    """Cost of the replay that leads to its start; counted with its first turn."""
    totals: list[Cost] = field(default_factory=lambda: [Cost()])
    """Entry k: cost of its first k turns."""
    is_under_way: bool = False
    is_over: bool = False

    @property
    def num_turns(self) -> int:
        return len(self.totals) - 1


class BudgetTracker:
    """Counts the costs of one search and admits turns."""

    def __init__(self, budget: SearchBudget, *, largest_turn: Cost, ordered: bool = True) -> None:
        """Start with nothing spent; turns are admitted by their fixed order or, if not `ordered`, as they arrive."""
        self._budget, self._largest_turn, self._ordered = budget, largest_turn, ordered
        self._spent_before = Cost()
        """Spent before any of the active branches began."""
        self._branches: dict[int, _BranchCosts] = {}
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def spent(self) -> Cost:
        return sum((branch.totals[-1] for branch in self._branches.values()), self._spent_before)

    @property
    def used(self) -> tuple[float, ...]:
        """What was spent of all that is limited. A search that continues without using any of it would not end."""
        spent = self.spent
        return tuple(getattr(spent, name) for name in self._budget.limits)

    @property
    def share_used(self) -> float:
        """Share of the budget that was spent, of the limit that is nearest; 0 where nothing is limited."""
        limits = self._budget.limits.values()
        return max((used / limit for used, limit in zip(self.used, limits, strict=True)), default=0.0)

    @property
    def is_exhausted(self) -> bool:
        """True where no further turn can start."""
        return self._budget.is_spent(self.spent)

    def add_branch(self, number: int, *, replay: Cost = _NOTHING) -> None:
        """Track branch `number`. Branches that run side by side are added before the first of them is admitted."""
        if all(branch.is_over for branch in self._branches.values()):
            self._spent_before, self._branches = self.spent, {}
        self._branches[number] = _BranchCosts(number, replay)

    def add_turn(self, number: int, cost: Cost) -> None:
        """Count a finished turn of branch `number`; the first one with the replay before it."""
        branch = self._branches[number]
        branch.totals.append(branch.totals[-1] + cost if branch.num_turns else branch.replay + cost)
        branch.is_under_way = False
        self._wake()

    def end_branch(self, number: int) -> None:
        """Mark branch `number` as ended: it starts no further turn."""
        self._branches[number].is_over = True
        self._wake()

    async def admit(self, number: int, *, waiting: Callable[[], AbstractAsyncContextManager[None]]) -> bool:
        """Return whether branch `number` may start its next turn; wait, within `waiting`, while that is not known."""
        if not self._budget.is_limited:
            return True
        branch = self._branches[number]
        is_admitted = self._decide(branch)
        if is_admitted is None:
            async with waiting():
                while (is_admitted := self._decide(branch)) is None:
                    changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(changed)
                    await changed
                branch.is_under_way = is_admitted
        branch.is_under_way = is_admitted
        return is_admitted

    def _decide(self, asking: _BranchCosts) -> bool | None:
        """Return whether the next turn of `asking` may start; None: that depends on turns under way."""
        spent, at_most = self._spent_before, _NOTHING
        for branch in self._branches.values():
            earlier = asking.num_turns + (branch.number < asking.number) if self._ordered else branch.num_turns
            spent += branch.totals[min(earlier, branch.num_turns)]
            num_open = earlier - branch.num_turns if self._ordered else int(branch.is_under_way)
            if num_open > 0 and not branch.is_over:
                at_most = sum([self._largest_turn] * num_open, at_most)
                at_most += _NOTHING if branch.num_turns else branch.replay
        if self._budget.is_spent(spent):
            return False
        return None if self._budget.is_spent(spent + at_most) else True

    def _wake(self) -> None:
        for changed in self._waiting:
            if not changed.done():
                changed.set_result(None)
        self._waiting.clear()
