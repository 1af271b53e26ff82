"""Search: how the trees of one group are grown from one task. Training and evaluation use the same strategies."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from envgym.agents.search.best_of import BestOf
from envgym.agents.search.chain import Chain
from envgym.agents.search.engine import RolloutContext
from envgym.agents.search.mcts import Mcts
from envgym.agents.search.protocol import Selection, Strategy
from envgym.agents.search.random_expand import RandomExpand
from envgym.agents.search.surprisal_fork import SurprisalFork
from envgym.agents.search.turn_uncertainty import TurnUncertainty
from envgym.errors import unknown_name
from envgym.settings import Settings, build_settings

__all__ = [
    "STRATEGIES",
    "BestOf",
    "Chain",
    "Mcts",
    "RandomExpand",
    "RolloutContext",
    "Selection",
    "Strategy",
    "SurprisalFork",
    "TurnUncertainty",
    "make_strategy",
    "strategy_class",
]

STRATEGIES: Mapping[str, type[Strategy]] = MappingProxyType(
    {
        "chain": Chain,
        "best_of": BestOf,
        "random_expand": RandomExpand,
        "surprisal_fork": SurprisalFork,
        "turn_uncertainty": TurnUncertainty,
        "mcts": Mcts,
    }
)
"""Name -> strategy; its fields are its settings."""


def make_strategy(name: str, settings: Mapping[str, Any], *, where: str = "search") -> Strategy:
    """Build the strategy called `name` from its settings. Raises: UnknownName, SettingsError: a sentence per fault."""
    kind = strategy_class(name)
    assert issubclass(kind, Settings), "strategies are settings"
    return build_settings(kind, settings, where=f"{where} {name}")


def strategy_class(name: str) -> type[Strategy]:
    """Return the class of the strategy called `name`. Raises: UnknownName: there is none; near names are listed."""
    if name not in STRATEGIES:
        raise unknown_name("search strategy", name, STRATEGIES, where="search")
    return STRATEGIES[name]
