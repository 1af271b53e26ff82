"""Which server a request goes to: the one that holds most of its context, as long as it is not far busier than others.

A context is known by chained hashes of its whole blocks, as a prefix cache is: the hash of a block covers all tokens
before it and the salt, so that nothing is looked for that other weights computed. A pure table: no clock, no network.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

BLOCK: Final = 32
"""Tokens of a block; as vLLM's on a CPU."""
MAX_BLOCKS: Final = 1 << 18
"""Blocks that are remembered; the oldest go first."""
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
        """Begin without knowledge."""
        self._max_blocks = max_blocks
        self._server_of: OrderedDict[int, int] = OrderedDict()

    def choose(self, hashes: Sequence[int], loads: Sequence[ServerLoad]) -> int | None:
        """Return the number of the server for a context; None: no server has room.

        Args:
            hashes: of the context's blocks, from `block_hashes`.
            loads: of the servers that can be used.
        """
        with_room = [load for load in loads if load.has_room]
        if not with_room:
            return None
        most = SLACK * sum(load.under_way for load in loads) / len(loads) + 1
        matched = self._matched(hashes)

        def cost(load: ServerLoad) -> tuple[int, int, int]:
            held = matched.get(load.number, 0) if load.under_way <= most else 0
            return -held, load.under_way, load.number

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
        code = hash((code, *token_ids[start : start + BLOCK]))
        codes.append(code)
    return codes
