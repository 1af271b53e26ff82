"""The plug-ins of agents: how an agent acts, how a search grows trees, and what an evaluation counts."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from envgym.plugins import PluginKind

if TYPE_CHECKING:
    from envgym.agents.search import Strategy

SEARCH: Final["PluginKind[Strategy]"] = PluginKind(
    name="search",
    protocols=("envgym.agents.search:Strategy",),
    table={
        "chain": "envgym.agents.search.chain:Chain",
        "best_of": "envgym.agents.search.best_of:BestOf",
        "random_expand": "envgym.agents.search.random_expand:RandomExpand",
        "surprisal_fork": "envgym.agents.search.surprisal_fork:SurprisalFork",
        "turn_uncertainty": "envgym.agents.search.turn_uncertainty:TurnUncertainty",
        "mcts": "envgym.agents.search.mcts:Mcts",
    },
)
"""How the trees of a group are grown."""

KINDS: Final[Mapping[str, "PluginKind[Any]"]] = MappingProxyType(  # each kind makes objects of its own type
    {kind.name: kind for kind in (SEARCH,)}
)
"""Name -> kind."""
