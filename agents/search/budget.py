"""A counted budget: what one search may spend, and who may start a turn while others are still spending.

A turn starts only where everything that comes before it leaves something of the budget, so a budget is exceeded by
less than one turn. What comes before a turn is either fixed (`ordered`: turn by turn, and branch by branch within a
turn, so the outcome does not depend on who was faster) or what was admitted earlier.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields

from pydantic import Field

from envgym.core.turns import Cost
from envgym.errors import SettingsError, sentence
from envgym.settings import Settings

_NOTHING = Cost()


class Budget(Settings):
    """Most that one search may spend on one task; None: no limit."""

    tokens_generated: int | None = Field(default=None, ge=1)
    tokens_prefilled: int | None = Field(default=None, ge=1)
    tool_calls: int | None = Field(default=None, ge=1)
    env_steps: int | None = Field(default=None, ge=1)
    """Steps that verify a replay count as well."""
    seconds: float | None = Field(default=None, gt=0)
    """Time spent in calls of policy and env, added up; the turns under way may exceed it, and who is cut depends on
    timing."""

    @property
    def is_limited(self) -> bool:
        """True where anything is limited."""
        return any(getattr(self, name) is not None for name in Budget.model_fields)

    def share(self, parts: int) -> "Budget":
        """Return one of `parts` equal shares, counts rounded down but to at least 1."""
        shares: dict[str, float | int | None] = {}
        for name in Budget.model_fields:
            limit = getattr(self, name)
            is_count = isinstance(limit, int)
            shares[name] = None if limit is None else max(limit // parts, 1) if is_count else limit / parts
        return Budget.model_validate(shares)

    def is_spent(self, cost: Cost) -> bool:
        """Return whether `cost` has reached a limit."""
        limits = ((getattr(cost, name), getattr(self, name)) for name in Budget.model_fields)
        return any(limit is not None and spent >= limit for spent, limit in limits)


def largest_turn(*, max_turn_tokens: int, max_context_tokens: int) -> Cost:
    """Return what one turn can cost at most; a call takes at least a token to write, and seconds have no bound."""
    return Cost(
        tokens_generated=max_turn_tokens,
        tokens_prefilled=max_context_tokens,
        tool_calls=max_turn_tokens,
        env_steps=1,
    )


def check_budget(budget: Budget, *, max_turn_tokens: int, parts: int, where: str) -> None:
    """Refuse a budget of which not even one turn's tokens are sure to fit. Raises: SettingsError."""
    tokens = budget.tokens_generated
    if tokens is not None and tokens // parts < max_turn_tokens:
        got = f"{tokens} generated tokens for {parts} tree{'s' if parts > 1 else ''}"
        must = f"hold at least one chain, and a turn alone may take {max_turn_tokens} tokens"
        raise SettingsError(sentence("budget", must, got, where=where, do="raise it, or lower agent.max_turn_tokens"))


@dataclass(slots=True, eq=False)
class _Spender:
    """One branch in the purse's books."""

    number: int
    opening: Cost
    """What its first turn costs on top: the replay that leads to where it begins."""
    totals: list[Cost] = field(default_factory=lambda: [Cost()])
    """Entry k: cost of its first k turns."""
    is_under_way: bool = False

    @property
    def num_turns(self) -> int:
        """Turns that are over."""
        return len(self.totals) - 1


class Purse:
    """Counts the spending of one search and admits turns."""

    def __init__(self, budget: Budget, *, turn: Cost, ordered: bool = True) -> None:
        """Start with nothing spent.

        Args:
            budget: what may be spent.
            turn: most that one turn can cost.
            ordered: admit by the fixed order of turns; False: as they arrive.
        """
        self._budget, self._turn, self._ordered = budget, turn, ordered
        self._before = Cost()
        """Spent before any of the present spenders began."""
        self._present: dict[int, _Spender] = {}
        self._gone: dict[int, _Spender] = {}
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def spent(self) -> Cost:
        """All that was spent."""
        spenders = (*self._present.values(), *self._gone.values())
        return sum((spender.totals[-1] for spender in spenders), self._before)

    @property
    def used(self) -> tuple[float, ...]:
        """What was spent of everything that is limited. A search that goes on without using any of it would not end."""
        spent = self.spent
        return tuple(getattr(spent, name) for name in Budget.model_fields if getattr(self._budget, name) is not None)

    @property
    def share_used(self) -> float:
        """Share of the budget that was spent, of the limit that is nearest; 0 where nothing is limited."""
        limits = (getattr(self._budget, name) for name in Budget.model_fields)
        return max((used / limit for used, limit in zip(self.used, filter(None, limits), strict=True)), default=0.0)

    @property
    def is_empty(self) -> bool:
        """True where no further turn can start."""
        return self._budget.is_spent(self.spent)

    def join(self, number: int, *, opening: Cost = _NOTHING) -> None:
        """Take in branch `number`. Branches that run side by side join before the first of them asks."""
        if not self._present:
            self._before, self._gone = self.spent, {}
        self._present[number] = _Spender(number, opening)

    def settle(self, number: int, cost: Cost) -> None:
        """Count a finished turn of branch `number`; the first one with its opening."""
        spender = self._present[number]
        spender.totals.append(spender.totals[-1] + cost if spender.num_turns else spender.opening + cost)
        spender.is_under_way = False
        self._wake()

    def leave(self, number: int) -> None:
        """Let branch `number` go: it asks for no turn any more."""
        self._gone[number] = self._present.pop(number)
        self._wake()

    async def admit(self, number: int, *, waiting: Callable[[], AbstractAsyncContextManager[None]]) -> bool:
        """Return whether branch `number` may start its next turn; wait while that is not known.

        Args:
            number: the branch.
            waiting: entered while there is something to wait for.
        """
        if not self._budget.is_limited:
            return True
        spender = self._present[number]
        verdict = self._verdict(spender)
        if verdict is None:
            async with waiting():
                while (verdict := self._verdict(spender)) is None:
                    changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(changed)
                    await changed
                spender.is_under_way = verdict
        spender.is_under_way = verdict
        return verdict

    def _verdict(self, asking: _Spender) -> bool | None:
        """Return whether the next turn of `asking` may start; None: that depends on turns that are not over."""
        known, at_most = self._before, _NOTHING
        for spender in (*self._present.values(), *self._gone.values()):
            earlier = asking.num_turns + (spender.number < asking.number) if self._ordered else spender.num_turns
            known += spender.totals[min(earlier, spender.num_turns)]
            num_open = earlier - spender.num_turns if self._ordered else int(spender.is_under_way)
            if num_open > 0 and spender.number in self._present:
                at_most += _times(self._turn, num_open)
                at_most += _NOTHING if spender.num_turns else spender.opening
        if self._budget.is_spent(known):
            return False
        return None if self._budget.is_spent(known + at_most) else True

    def _wake(self) -> None:
        for changed in self._waiting:
            if not changed.done():
                changed.set_result(None)
        self._waiting.clear()


def _times(cost: Cost, count: int) -> Cost:
    return Cost(**{part.name: getattr(cost, part.name) * count for part in fields(Cost)})
