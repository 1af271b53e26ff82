"""A pipeline of training runs: each phase begins with the weights that the one before it has left.

A phase is a run of its own in a folder of its own, so its settings, metrics, evaluations and checkpoints are those of
any run, and a pipeline that was killed goes on where it stopped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import Field

from envgym.errors import SettingsError, sentence
from envgym.run_trust import check_trusted
from envgym.settings import Settings
from envgym.trainer.learner.checkpoint import load_state, newest_checkpoint, require_checkpoint
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.train import train

Phase = Mapping[str, Any]
"""Sections of a run's settings, laid over the shared ones, and the phase's `name`."""


class PhasesSettings(Settings):
    """The section `phases` of a settings file, whose other sections are those that all phases share."""

    phases: tuple[dict[str, Any], ...] = Field(min_length=1)


TULU_3: Final[Sequence[Phase]] = (
    MappingProxyType({"name": "sft", "run": {"steps": 0}, "sft": {"epochs": 2}}),
    MappingProxyType(
        {
            "name": "preference",
            "loss": {"name": "dpo", "beta": 5.0, "per": "token", "reference": "reference"},
            "objective": {"aggregation": "token-sum"},
            "optim": {"lr": 5e-7, "decay": "linear"},
        }
    ),
    MappingProxyType(
        {
            "name": "rlvr",
            "recipe": "grpo",
            "objective": {"kl_coef": 0.01, "kl_estimator": "k3"},
            "rollout": {"group_size": 16},
            "optim": {"lr": 5e-7},
        }
    ),
)
"""Supervised, then preferences of the supervised policy's own episodes by `dpo_norm`, then verifiable rewards.

Source: 2411.15124 (TÜLU 3), whose last phase is PPO with a critic that begins as a reward model; here it is GRPO with
the numbers of its successor, Tülu 3.1. Preferences are of one group's episodes, not of several models' replies.
"""


def phase_settings(shared: Mapping[str, Any], phases: Sequence[Phase], directory: Path) -> list[TrainSettings]:
    """Return the settings of every phase, each in a folder of its own below `directory`.

    The weights of all but the first are put in when they are there. Sections that a phase names are laid over the
    shared ones, key by key; a plug-in's section (`loss`, `credit` ...) replaces the shared one.

    Raises: SettingsError, UnknownName: of the first phase that does not hold, with its name.
    """
    if not phases:
        raise SettingsError(sentence("phases", "be at least one", "none", where="pipeline", do="name some"))
    names = [str(phase.get("name", f"phase{number}")) for number, phase in enumerate(phases, start=1)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SettingsError(
            sentence("names of phases", "differ", f"{repeated[0]} twice", where="pipeline", do="rename one")
        )
    found: list[TrainSettings] = []
    for number, (name, phase) in enumerate(zip(names, phases, strict=True), start=1):
        data = dict(shared)
        for section, value in phase.items():
            if section != "name":
                old = data.get(section)
                both = isinstance(old, Mapping) and isinstance(value, Mapping) and "name" not in value
                data[section] = {**old, **value} if both else value  # type: ignore[dict-item]  # `both` checked it
        run = data.get("run", {})
        if isinstance(run, Mapping):  # else it is refused below
            data["run"] = {**run, "name": name, "directory": str(directory / f"{number}-{name}")}
        found.append(train_settings(data, where=f"phase {name}"))
    return found


def train_phases(phases: Sequence[TrainSettings], *, callbacks: Sequence[Callback] = ()) -> Path:
    """Train phase after phase, from where an earlier call stopped; return the last phase's run directory.

    Raises: SettingsError, UnknownName, RunError: as `train`.
    """
    before: Path | None = None
    for settings in phases:
        begun = settings if before is None else _from_weights(settings, before)
        before = settings.run.path
        checkpoint = newest_checkpoint(before) if (before / "run.json").exists() else None
        if checkpoint is None or load_state(checkpoint).step < settings.run.steps:
            train(begun, callbacks=callbacks, resume=(before / "run.json").exists())
    assert before is not None, "phases are at least one"
    return before


def _from_weights(settings: TrainSettings, before: Path) -> TrainSettings:
    """Return the settings with the model that a phase has left."""
    check_trusted(before, {})
    weights = str(require_checkpoint(before) / "model")
    update = {"adapter": weights} if settings.model.lora is not None else {"name": weights}
    return settings.model_copy(update={"model": settings.model.model_copy(update=update)})
