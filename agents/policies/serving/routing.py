"""Which server a request goes to, and how many one server has at a time: pure rules, without a clock or a network.

A request goes to the server that holds most of its context, as long as it is not far busier than others. A context is
known by chained hashes of its whole blocks, as a prefix cache is: the hash of a block covers all tokens before it and
the salt, so that nothing is looked for that other weights computed.

The number of requests follows the server's cache pressure by additive increase and multiplicative decrease:

    limit <- max(floor, factor · limit)    where the server preempted a sequence, as its cache was full
    limit <- min(ceiling, limit + 1)       where it did not, and the limit was reached

Source: 10.1016/0169-7552(89)90019-6 (Chiu and Jain, 1989).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from envgym.errors import InvalidInput

BLOCK: Final = 32
"""Tokens of a block; as vLLM's on a CPU."""
MAX_BLOCKS: Final = 1 << 18
"""Blocks that are remembered; the oldest go first."""
DECREASE: Final = 0.75
"""Factor of the limit of requests after cache pressure."""
SLACK: Final = 1.25
"""A server with the prefix takes a request while it has at most so many times the mean of requests, and one more."""


class ServerLoad(NamedTuple):
    """A server that can be used."""

    number: int
    under_way: int
    has_room: bool
    """Whether its limit allows another request."""


class PrefixRouter:
    """Remembers which server was last sent each block."""

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._server_of: OrderedDict[int, int] = OrderedDict()

    def choose(self, hashes: Sequence[int], loads: Sequence[ServerLoad], *, holder: int | None = None) -> int | None:
        """Return the number of the server for a context; None: no server has room.

        Args:
            hashes: of the context's blocks, from `block_hashes`.
            loads: of the servers that can be used.
            holder: number of the server that was sent the context before; None: the blocks tell.
        """
        with_room = [load for load in loads if load.has_room]
        if not with_room:
            return None
        most = SLACK * sum(load.under_way for load in loads) / len(loads) + 1
        matched = self._matched(hashes) if holder is None else {holder: 1}

        def cost(load: ServerLoad) -> tuple[int, int, int]:
            num_matched = matched.get(load.number, 0) if load.under_way <= most else 0
            return -num_matched, load.under_way, load.number

        return min(with_room, key=cost).number

    def note(self, hashes: Sequence[int], server: int) -> None:
        """Remember that a server computes these blocks."""
        for code in hashes:
            self._server_of[code] = server
            self._server_of.move_to_end(code)
        while len(self._server_of) > self._max_blocks:
            self._server_of.popitem(last=False)

    def forget(self, server: int) -> None:
        """Forget what a server computed: it is gone, or was started anew."""
        for code in [code for code, other in self._server_of.items() if other == server]:
            del self._server_of[code]

    def _matched(self, hashes: Sequence[int]) -> dict[int, int]:
        """Return the number of first blocks of the context up to the last one that each server was sent."""
        matched: dict[int, int] = {}
        for place, code in enumerate(hashes, start=1):
            server = self._server_of.get(code)
            if server is None:
                break
            matched[server] = place
        return matched


def block_hashes(token_ids: Sequence[int], salt: str) -> list[int]:
    """Return the chained hash of each whole block of a context."""
    codes: list[int] = []
    code = hash(salt)
    for start in range(0, len(token_ids) - BLOCK + 1, BLOCK):
        code = hash((code, tuple(token_ids[start : start + BLOCK])))
        codes.append(code)
    return codes


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
