"""Which weights the policy servers of a run have, as the process that updates them tells clients in others."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self


class WeightsState(NamedTuple):
    """The weights of a fleet."""

    version: int
    digest: str = ""
    """From `join_digests`; empty: the weights that the servers were started with."""
    num_clears: int = 0
    """How often the prefix caches were cleared."""
    revision: int = 0
    """Number of the state among those that were told: the largest one is in force."""
    servers: tuple[str, ...] = ()
    """Servers that were proved to have these weights and can be used, as `ServerLink.started` names them."""

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Self:  # of JSON
        """Read what JSON makes of a state."""
        state = cls(*data)
        return state._replace(servers=tuple(state.servers))


def join_digests(digests: Mapping[str, object]) -> str:
    """Return the sha256 of the digests of all weights, by name."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()
