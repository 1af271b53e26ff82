"""Search: how the trees of one group are grown from one task. Training and evaluation use the same strategies."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from envgym.agents.agent import Agent
from envgym.agents.episode import Clock, EpisodeJob
from envgym.agents.protocols import Policy, Sampling
from envgym.agents.search.chain import Chain
from envgym.core.tree import Tree
from envgym.errors import unknown_name


class Strategy(Protocol):
    """Grows the trees of one group."""

    async def grow(
        self, job: EpisodeJob, agent: Agent, policy: Policy, *, sampling: Sampling, clock: Clock
    ) -> tuple[Tree, ...]:
        """Return the trees of the task of `job`; an episode that failed is in them with its ending."""
        ...


STRATEGIES: Mapping[str, type[Strategy]] = MappingProxyType({"chain": Chain})
"""Name -> strategy; its fields are its settings."""


def strategy(name: str) -> type[Strategy]:
    """Return the strategy called `name`. Raises: UnknownName: there is none; near names are listed."""
    if name not in STRATEGIES:
        raise unknown_name("search strategy", name, STRATEGIES, where="search")
    return STRATEGIES[name]
