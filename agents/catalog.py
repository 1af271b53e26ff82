"""The plug-ins of agents: what samples, and how a search grows trees and chooses among their leaves."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from envgym.plugins import PluginKind, read_kinds

if TYPE_CHECKING:
    from envgym.agents.evaluation.metrics.base import Metric
    from envgym.agents.loop.agent import AgentKind
    from envgym.agents.loop.context import ContextStrategy
    from envgym.agents.policies.backends import PolicyBackend
    from envgym.agents.rendering.factory import RendererFactory
    from envgym.agents.search import Strategy
    from envgym.agents.search.scorers import AnswerScorer, ValueFn

KINDS: Final = read_kinds(Path(__file__).with_suffix(".toml"))
"""Name -> kind."""

AGENT: Final[PluginKind["AgentKind"]] = KINDS["agent"]
CONTEXT_STRATEGY: Final[PluginKind["ContextStrategy"]] = KINDS["context_strategy"]
RENDERER: Final[PluginKind["RendererFactory"]] = KINDS["renderer"]
SEARCH: Final[PluginKind["Strategy"]] = KINDS["search"]
VALUE: Final[PluginKind["ValueFn"]] = KINDS["value"]
ANSWER_SCORER: Final[PluginKind["AnswerScorer"]] = KINDS["answer_scorer"]
METRIC: Final[PluginKind["Metric"]] = KINDS["metric"]
POLICY_BACKEND: Final[PluginKind["PolicyBackend"]] = KINDS["policy_backend"]
