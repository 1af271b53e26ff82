"""What of a run's choices cannot work together, and is refused before it begins."""

from collections.abc import Mapping
from contextlib import closing

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.search import Strategy
from envgym.agents.search.snapshots import Branching, resolve_branching
from envgym.errors import SettingsError, sentence
from envgym.trainer.catalog import CREDIT
from envgym.trainer.env_source import EnvSource
from envgym.trainer.methods.protocols import BatchCredit, Credit, CriticCredit, Curriculum
from envgym.trainer.settings import TrainSettings

AnyCredit = Credit | BatchCredit


def check_critic_stays(before: AnyCredit, after: AnyCredit, settings: TrainSettings) -> None:
    """Check that a change of settings leaves the critic alone. Raises: SettingsError: it needs one, or one no more."""
    had_critic = isinstance(before, CriticCredit)
    if isinstance(after, CriticCredit) != had_critic:
        must = f"{'read' if had_critic else 'not read'} a critic's values, as the one before"
        do = "begin another run with it: the critic is built with the model"
        raise SettingsError.of("credit", must, settings.credit.name, where="controllers", do=do)


def check_group(credit: AnyCredit, settings: TrainSettings) -> None:
    """Check that groups can be compared. Raises: SettingsError: every advantage would be 0."""
    size, name = settings.rollout.group_size, settings.credit.name
    # Most of ours give the only episode of a group 0, and those say so that do not; one of another package need not.
    if size < 2 and name in CREDIT.table and not getattr(credit, "works_alone", False):
        must = f"be at least 2 for {name}, which compares the episodes of a group"
        raise SettingsError(sentence("rollout.group_size", must, size, where="rollout", do="raise it"))


def check_search(
    search: Strategy, env_sources: Mapping[str, EnvSource], agent: AgentSettings, *, group_size: int | None
) -> None:
    """Check that every env, the agent and the group size suit the search. Raises: SettingsError: they do not."""
    for env_source in env_sources.values():
        with closing(env_source.make()) as env:
            search.check(env, agent, group_size=group_size)


def check_start_states(curriculum: Curriculum, env_sources: Mapping[str, EnvSource]) -> None:
    """Check that episodes can go on from recorded states where the curriculum asks for it. Raises: SettingsError."""
    for env_source in env_sources.values() if getattr(curriculum, "needs_start_states", False) else ():
        with closing(env_source.make()) as env:
            resolve_branching(env, Branching.AUTO, where="curriculum")
