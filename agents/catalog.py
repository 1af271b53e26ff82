"""The plug-ins of agents: what samples, and how a search grows trees and chooses among their leaves."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from envgym.plugins import PluginKind

if TYPE_CHECKING:
    from envgym.agents.evaluation.metrics import Metric
    from envgym.agents.loop.agent import AgentKind
    from envgym.agents.loop.context import ContextStrategy
    from envgym.agents.policies.backends import PolicyBackend
    from envgym.agents.rendering.factory import RendererFactory
    from envgym.agents.search import Strategy
    from envgym.agents.search.scorers import AnswerScorer, ValueFn

AGENT: Final["PluginKind[AgentKind]"] = PluginKind(
    name="agent",
    protocols=("envgym.agents.loop.agent:AgentKind",),
    table={
        "plain": "envgym.agents.loop.agent:PLAIN",
        "tool_calling": "envgym.agents.loop.agent:TOOL_CALLING",
        "react": "envgym.agents.loop.agent:REACT",
        "code_act": "envgym.agents.loop.agent:CODE_ACT",
    },
)
"""What an agent is made of."""

CONTEXT_STRATEGY: Final["PluginKind[ContextStrategy]"] = PluginKind(
    name="context_strategy",
    protocols=("envgym.agents.loop.context:ContextStrategy",),
    table={
        "stop": "envgym.agents.loop.context:stop",
        "drop_oldest_turns": "envgym.agents.loop.context:drop_oldest_turns",
        "drop_thinking": "envgym.agents.loop.context:drop_thinking",
    },
    is_function=True,
)
"""What is left out of a context that is full."""

RENDERER: Final["PluginKind[RendererFactory]"] = PluginKind(
    name="renderer",
    protocols=("envgym.agents.rendering.factory:RendererFactory",),
    table={
        "auto": "envgym.agents.rendering.factory:AutoRendererFactory",
        "family": "envgym.agents.rendering.factory:FamilyRendererFactory",
        "generic": "envgym.agents.rendering.factory:GenericRendererFactory",
    },
    is_function=True,
)
"""How messages become tokens."""

SEARCH: Final["PluginKind[Strategy]"] = PluginKind(
    name="search",
    protocols=("envgym.agents.search.protocol:Strategy",),
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

VALUE: Final["PluginKind[ValueFn]"] = PluginKind(
    name="value",
    protocols=("envgym.agents.search.scorers:ValueFn",),
    table={"critic": "envgym.trainer.workflows.critic_value:critic"},
    is_function=True,
)
"""What a search expects of its states."""

ANSWER_SCORER: Final["PluginKind[AnswerScorer]"] = PluginKind(
    name="answer_scorer",
    protocols=("envgym.agents.search.scorers:AnswerScorer",),
    table={
        "majority": "envgym.agents.search.scorers:Majority",
        "likelihood": "envgym.agents.search.scorers:Likelihood",
        "reward": "envgym.agents.search.scorers:RewardScorer",
    },
)
"""By what a search chooses its answer."""

METRIC: Final["PluginKind[Metric]"] = PluginKind(
    name="metric",
    protocols=("envgym.agents.evaluation.metrics:Metric",),
    table={
        "endings": "envgym.agents.evaluation.metrics:Endings",
        "lengths": "envgym.agents.evaluation.metrics:Lengths",
    },
    is_function=True,
)
"""What is measured of episodes, in training and evaluation."""

POLICY_BACKEND: Final["PluginKind[PolicyBackend]"] = PluginKind(
    name="policy_backend",
    protocols=("envgym.agents.policies.backends:PolicyBackend",),
    table={
        "transformers": "envgym.agents.policies.backends:transformers_policy",
        "vllm": "envgym.agents.policies.backends:vllm_policy",
        "vllm_server": "envgym.agents.policies.backends:vllm_server_policy",
        "openai": "envgym.agents.policies.backends:openai_policy",
    },
    is_function=True,
)
"""What samples."""

KINDS: Final[Mapping[str, "PluginKind[Any]"]] = MappingProxyType(  # each kind makes objects of its own type
    {
        kind.name: kind
        for kind in (AGENT, CONTEXT_STRATEGY, RENDERER, SEARCH, VALUE, ANSWER_SCORER, METRIC, POLICY_BACKEND)
    }
)
"""Name -> kind."""
