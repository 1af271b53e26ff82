"""The envs of a run: checked once, made as often as episodes need them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from envgym.agents.evaluation.play import held_out_tasks
from envgym.agents.settings import EnvSettings, EvaluationSettings
from envgym.core.tasks import Split, Task, TaskSource
from envgym.env import Env
from envgym.errors import SettingsError, sentence
from envgym.runs import check_labels
from envgym.trainer.methods.protocols import EnvSupply


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSource:
    """One env of the mixture."""

    label: str
    env_id: str
    weight: float
    make: Callable[[], Env[Any]]
    """Makes a fresh env; cheap."""
    tasks: TaskSource
    held_out: tuple[Task, ...]
    """What it is evaluated on."""


def build_env_sources(envs: Sequence[EnvSettings], evaluation: EvaluationSettings) -> dict[str, EnvSource]:
    """Make every env once to see that its settings hold and that there are tasks, and return the env sources by label.

    Args:
        envs: of the mixture.
        evaluation: how many distinct tasks each is evaluated on; where the split ends before, all of it.

    Raises: UnknownName, InvalidInput: an unknown id or setting, or an endless supply that repeats itself before so many
        tasks are found. SettingsError: two envs of one label, or a split without tasks.
    """
    check_labels((spec.label for spec in envs), where="envs")
    env_sources: dict[str, EnvSource] = {}
    for spec in envs:
        with closing(spec.make()) as env:
            tasks = env.unwrapped.tasks
        held_out = held_out_tasks(tasks, evaluation.tasks, split=evaluation.split)
        for split, is_empty in ((Split.TRAIN, tasks.size(Split.TRAIN) == 0), (evaluation.split, not held_out)):
            if is_empty:
                do = "choose settings, or a source of tasks, with both splits"
                raise SettingsError(sentence(f"{split} split", "hold tasks", "none", where=spec.label, do=do))
        env_sources[spec.label] = EnvSource(
            label=spec.label, env_id=spec.id, weight=spec.weight, make=spec.make, tasks=tasks, held_out=held_out
        )
    return env_sources


def supplies(env_sources: Mapping[str, EnvSource]) -> list[EnvSupply]:
    """Return what a curriculum may draw from."""
    return [
        EnvSupply(env_source.label, env_source.weight, env_source.tasks.size(Split.TRAIN))
        for env_source in env_sources.values()
    ]
