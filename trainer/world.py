"""The envs of a run: checked once, made as often as episodes need them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import envgym
from envgym.agents.search import Strategy
from envgym.core.tasks import Split, TaskSource
from envgym.env import Env
from envgym.errors import SettingsError, sentence
from envgym.runs import check_labels
from envgym.trainer.points import EnvSupply
from envgym.trainer.settings import EnvSettings, TrainSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One env of the mixture."""

    label: str
    env_id: str
    weight: float
    make: Callable[[], Env[Any]]
    """Makes a fresh env; cheap."""
    tasks: TaskSource


def build_worlds(envs: Sequence[EnvSettings]) -> dict[str, World]:
    """Make every env once to see that its settings hold, and return the worlds by label.

    Raises: UnknownName, InvalidInput: an unknown id or setting. SettingsError: two envs of one label.
    """
    check_labels((spec.label for spec in envs), where="envs")
    worlds: dict[str, World] = {}
    for spec in envs:
        make = _maker(spec)
        tasks: TaskSource = make().unwrapped.tasks
        if tasks.size(Split.TRAIN) == 0:
            do = "choose settings that leave tasks to train on"
            raise SettingsError(sentence("train split", "hold tasks", "none", where=spec.label, do=do))
        worlds[spec.label] = World(label=spec.label, env_id=spec.id, weight=spec.weight, make=make, tasks=tasks)
    return worlds


def check_search(search: Strategy, worlds: Mapping[str, World], settings: TrainSettings) -> None:
    """See that every env, the agent and the group size suit the search. Raises: SettingsError: they do not."""
    for world in worlds.values():
        env = world.make()
        try:
            search.check(env, settings.agent, group_size=settings.rollout.group_size)
        finally:
            env.close()


def _maker(spec: EnvSettings) -> Callable[[], Env[Any]]:
    return lambda: envgym.make(spec.id, **spec.settings)


def supplies(worlds: Mapping[str, World]) -> list[EnvSupply]:
    """Return what a curriculum may draw from."""
    return [EnvSupply(world.label, world.weight, world.tasks.size(Split.TRAIN)) for world in worlds.values()]
