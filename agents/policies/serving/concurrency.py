"""How many requests one policy server has at a time: additive increase, multiplicative decrease on cache pressure.

    limit <- max(floor, factor · limit)    where the server preempted a sequence, as its cache was full
    limit <- min(ceiling, limit + 1)       where it did not, and the limit was reached

A pure state machine: what it learns is what `observe` is told, and every observation gives a new state.
Source: 10.1016/0169-7552(89)90019-6 (Chiu and Jain, 1989).
"""

from dataclasses import dataclass, replace
from typing import Final

from envgym.errors import InvalidInput

DECREASE: Final = 0.75
"""Factor of the limit after cache pressure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyLimit:
    """The limit of one server, and what it was learnt from."""

    limit: float
    """Requests at a time; a part of one counts for the next increase only."""
    ceiling: int
    floor: int = 1
    preemptions: int = 0
    """That the server had counted by the last observation."""
    most_under_way: int = 0
    """Most requests since the last observation."""

    def __post_init__(self) -> None:
        """Refuse limits that leave no request."""
        holds = 1 <= self.floor <= self.limit <= self.ceiling
        got = f"{self.floor}, {self.limit:g}, {self.ceiling}"
        do = "see ConcurrencyLimit"
        InvalidInput.unless(holds, "floor, limit and ceiling", "be 1 or more and ascend", got, where="limit", do=do)

    def allows(self, num_under_way: int) -> bool:
        """Return whether one more request may begin beside so many."""
        return num_under_way < int(self.limit)

    def begin(self, num_under_way: int) -> "ConcurrencyLimit":
        """Note that so many requests are under way, the newest included."""
        return self if num_under_way <= self.most_under_way else replace(self, most_under_way=num_under_way)

    def observe(self, preemptions: int, num_under_way: int) -> "ConcurrencyLimit":
        """Adapt to how many preemptions the server has counted since it started; fewer than before: it is a new one."""
        limit = self.limit
        if preemptions > self.preemptions:
            limit = max(float(self.floor), DECREASE * limit)
        elif self.most_under_way >= int(limit):
            limit = min(float(self.ceiling), limit + 1)
        return replace(self, limit=limit, preemptions=preemptions, most_under_way=num_under_way)
