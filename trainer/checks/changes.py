"""Settings that controllers change while a run goes on: which may change, and the settings that result."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from envgym.config.settings import build_settings, read_value, set_value
from envgym.errors import SettingsError, near_names
from envgym.trainer.methods.controllers.base import Controller, Planned
from envgym.trainer.settings import TrainSettings

CHANGEABLE: Final = (
    "agent.max_context_tokens",
    "agent.max_turn_tokens",
    "correction",
    "credit",
    "curriculum",
    "filter",
    "loss",
    "objective",
    "optim.epochs",
    "optim.grad_clip",
    "optim.lr",
    "optim.minibatches",
    "resampling",
    "rollout.group_size",
    "rollout.groups",
    "sampling.temperature",
    "search",
    "shaping",
    "weights",
)
"""Sections and settings that are read anew in every step."""
_REASONS: Final = {
    "agent": "its prompts and their rendering are fixed with the first episode",
    "allocator": "groups that are under way are extended by it",
    "annotate": "groups that are under way are annotated by it",
    "canary": "what is checked of a run must hold for all of it",
    "controllers": "they are what changes the others",
    "critic": "it is built with the model",
    "decontamination": "tasks are dealt out when the run starts",
    "demonstrations": "they are played when the run starts",
    "engine": "it is started with the run",
    "envs": "their tasks are dealt out when the run starts",
    "evaluation": "evaluations of one run are compared with each other",
    "model": "it is loaded when the run starts",
    "models": "they are built when the run starts",
    "optim": "it belongs to the optimizer or to the schedule of the whole run",
    "recipe": "it is a name for choices; set those",
    "replay": "what it keeps is that of the whole run",
    "rollout": "groups that are under way depend on it",
    "run": "it describes the whole run",
    "sampling": "what is cut off has no exact gradient",
    "sft": "it is over when the first step begins",
}


class SettingsInForce:
    """The settings by which a run goes on, as its controllers have changed them."""

    def __init__(self, settings: TrainSettings) -> None:
        """Begin with those of the run."""
        self.now = settings

    @property
    def data(self) -> dict[str, Any]:
        """The sections as plain data."""
        return self.now.model_dump(mode="json")

    def change(self, changes: Mapping[str, Any], *, where: str) -> dict[str, Any]:
        """Put changes in force; return them with one dotted path for each value. Raises: as `changed_settings`."""
        values = leaves(changes, self.data)
        self.now = changed_settings(self.now, changes, where=where)
        return values


def changed_settings(settings: TrainSettings, changes: Mapping[str, Any], *, where: str) -> TrainSettings:
    """Return the settings with a controller's changes, checked like those that a run begins with.

    A section's mapping changes the keys that it names; another plug-in's name drops the settings of the one before.

    Args:
        settings: as they stand.
        changes: dotted path, or section -> value.
        where: names the controller.

    Raises: SettingsError: one that cannot change while a run goes on, or a value that does not hold.
    """
    data = settings.model_dump(mode="json")
    for path, value in sorted(leaves(changes, data).items(), key=_names_first):
        _check_changeable(path, settings, where)
        section, _, key = path.rpartition(".")
        if key == "name" and value != read_value(data, path):
            set_value(data, section, {"name": value}, source=path, where=where)
        else:
            set_value(data, path, value, source=path, where=where)
    return build_settings(TrainSettings, data, where=where)


def planned_settings(settings: TrainSettings, controllers: Sequence[Controller]) -> Iterator[TrainSettings]:
    """Yield the settings after each change that a controller plans, one controller after the other.

    Raises: SettingsError: a controller plans what cannot be.
    """
    data = settings.model_dump(mode="json")
    for choice, controller in zip(settings.controllers, controllers, strict=True):
        planned = settings
        for changes in controller.planned(data) if isinstance(controller, Planned) else ():
            planned = changed_settings(planned, changes, where=f"controller {choice.name}")
            yield planned


def leaves(changes: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes with one dotted path for each value; a bare plug-in name stands for `SECTION.name`."""
    values: dict[str, Any] = {}
    for path, value in changes.items():
        if isinstance(value, Mapping):
            values |= leaves({f"{path}.{key}": inner for key, inner in value.items()}, data)
        else:
            is_bare_name = isinstance(value, str) and isinstance(read_value(data, path), Mapping)
            values[f"{path}.name" if is_bare_name else path] = value
    return values


def _names_first(change: tuple[str, Any]) -> tuple[bool, int]:
    """Order changes so that a plug-in is chosen before its settings are, and an outer one before an inner one."""
    path, _ = change
    return not path.endswith(".name"), path.count(".")


def _check_changeable(path: str, settings: TrainSettings, where: str) -> None:
    if not any(f"{path}.".startswith(f"{setting}.") for setting in CHANGEABLE):
        reason = _REASONS.get(path.partition(".")[0], "there is no such section")
        names = near_names(path, CHANGEABLE) or CHANGEABLE
        must = f"be one that can change during a run ({reason})"
        raise SettingsError.of("setting", must, path, where=where, do=f"choose {' or '.join(names)}")
    if path == "sampling.temperature" and settings.rollout.staleness:
        got = f"rollout.staleness={settings.rollout.staleness}"
        must, do = "change only where no samples of the temperature before are under way", "set rollout.staleness=0"
        raise SettingsError.of(path, must, got, where=where, do=do)
