"""Search: how the trees of one group are grown from one task. Training and evaluation use the same strategies."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.agents.search.base import Grown, Strategy
from envgym.agents.search.chain import Chain
from envgym.agents.search.growth import Crew
from envgym.agents.search.random_expand import RandomExpand
from envgym.errors import unknown_name

__all__ = ["STRATEGIES", "Chain", "Crew", "Grown", "RandomExpand", "Strategy", "strategy"]

STRATEGIES: Mapping[str, type[Strategy]] = MappingProxyType({"chain": Chain, "random_expand": RandomExpand})
"""Name -> strategy; its fields are its settings."""


def strategy(name: str) -> type[Strategy]:
    """Return the strategy called `name`. Raises: UnknownName: there is none; near names are listed."""
    if name not in STRATEGIES:
        raise unknown_name("search strategy", name, STRATEGIES, where="search")
    return STRATEGIES[name]
