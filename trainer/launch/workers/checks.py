"""What a run with rollout workers must be: whatever lives in the run's process alone cannot be used in them."""

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.policies.serving.backend import POLICY_SERVERS
from envgym.agents.settings import EngineSettings
from envgym.errors import SettingsError
from envgym.trainer.launch.settings import LaunchSettings

if TYPE_CHECKING:
    from envgym.agents.search import Strategy
    from envgym.trainer.env_source import EnvSource

_WHAT = "launch.rollout_workers"


def check_settings(launch: LaunchSettings, engine: EngineSettings, agent: AgentSettings) -> None:
    """See that workers can play the episodes of a run. Raises: SettingsError: they cannot."""
    num_workers = launch.rollout_workers
    if not num_workers:
        return
    do = "set launch.servers (--servers 1), or name servers in engine.backend"
    must = "be 0 without policy servers: the policy lives in the run's process"
    has_servers = launch.servers > 0 or engine.backend.name == POLICY_SERVERS
    SettingsError.unless(has_servers, _WHAT, must, num_workers, where="launch", do=do)
    must, do = "be 0 with agent.program, which the run's process starts", "leave it out"
    SettingsError.unless(agent.program is None, _WHAT, must, num_workers, where="launch", do=do)


def check_parts(env_sources: "Mapping[str, EnvSource]", search: "Strategy", num_workers: int) -> None:
    """See that no part which the workers need has a state in the run's process. Raises: SettingsError: one has."""
    from envgym.trainer.methods.protocols import Checkpointed  # both load torch
    from envgym.trainer.models.opponent import model_seats

    must, do = "be 0 with a search that keeps a state", "leave it out, or choose another search"
    holds = not isinstance(search, Checkpointed)
    SettingsError.unless(holds, _WHAT, must, num_workers, where=f"search {type(search).__name__}", do=do)
    for source in env_sources.values():
        with closing(source.make()) as env:
            seats = model_seats(env)
        must, do = "be 0 where a model of the run plays in an env", "leave it out, or choose another party"
        SettingsError.unless(not seats, _WHAT, must, num_workers, where=f"parties of {source.label}", do=do)
