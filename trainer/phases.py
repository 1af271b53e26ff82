"""A pipeline of training runs: each phase begins with the weights that the one before it has left.

A phase is a run of its own in a folder of its own, so its settings, metrics, evaluations and checkpoints are those of
any run, and a pipeline that was killed goes on where it stopped.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from envgym.config.plugins import Choice
from envgym.errors import SettingsError, check_known
from envgym.runs.trust import check_trusted
from envgym.trainer.build import build_run_context, collect_plan
from envgym.trainer.learner.checkpoint import load_state, newest_checkpoint, require_checkpoint
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.planning.scope import planned_memory
from envgym.trainer.settings import NamedModelSettings, TrainSettings, lay_over, train_settings
from envgym.trainer.train import train
from envgym.trainer.workflows.dry_run import DryRun, dry_run

_PHASE: Final = "phase:"
Phase = Mapping[str, Any]
"""Sections of a run's settings, laid over the shared ones, and the phase's `name`."""


TULU_3: Final[Sequence[Phase]] = (
    MappingProxyType({"name": "sft", "run": {"steps": 0}, "sft": {"epochs": 2}}),
    MappingProxyType(
        {
            "name": "preference",
            "loss": {"name": "dpo", "beta": 5.0, "per": "token", "reference": "reference"},
            "objective": {"aggregation": "token-sum"},
            "optim": {"lr": 5e-7, "decay": "linear"},
            "models": {"reward": {"kind": {"name": "reward_model", "lr": 3e-6}}},
        }
    ),
    MappingProxyType(
        {
            "name": "rlvr",
            "recipe": "ppo",
            "credit": {"name": "gae_token", "discount": 1.0, "decay": 0.95, "whiten": True, "kl_coef": 0.005},
            "critic": {"model": "value", "clip": 0.02, "coef": 0.1},
            "models": {
                "value": {"kind": {"name": "token_critic", "run": "phase:preference", "model": "reward", "lr": 3e-7}}
            },
            "rollout": {"groups": 64, "group_size": 1},
            "optim": {"lr": 3e-7, "epochs": 4},
        }
    ),
)
"""Supervised, then preferences of the supervised policy's own episodes by `dpo_norm`, then verifiable rewards by PPO.

A reward model learns beside the policy from the same preferences, and the critic of PPO begins with it.

Source: 2411.15124 (TÜLU 3) and its authors' code, which pays 10 for a right answer: with rewards of 1 and whitened
advantages, a tenth of its KL coefficient (0.05) and of its value clip (0.2) is the same. Deviations: preferences are of
one group's episodes, not of several models' replies, the reward model's too; an episode that does not come to an end is
paid what the env pays, not -10; 64 episodes a step.
"""


def phase_settings(shared: Mapping[str, Any], phases: Sequence[Phase], directory: Path) -> list[TrainSettings]:
    """Return the settings of every phase, each in a folder of its own below `directory`.

    The weights of all but the first are put in when they are there. Sections that a phase names are laid over the
    shared ones, key by key; a plug-in's section (`loss`, `credit` ...) replaces the shared one. A value `phase:NAME`
    in a phase stands for the run directory of an earlier one.

    Raises: SettingsError, UnknownName: of the first phase that does not hold, with its name.
    """
    SettingsError.unless(phases, "phases", "be at least one", "none", where="pipeline", do="name some")
    names = [str(phase.get("name", f"phase{number}")) for number, phase in enumerate(phases, start=1)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SettingsError.of("names of phases", "differ", f"{repeated[0]} twice", where="pipeline", do="rename one")
    all_settings: list[TrainSettings] = []
    folders: dict[str, str] = {}
    for number, (name, phase) in enumerate(zip(names, phases, strict=True), start=1):
        own = {section: value for section, value in phase.items() if section != "name"}
        data = lay_over(shared, _with_folders(own, folders, where=f"phase {name}"))
        run, folders[name] = data.get("run", {}), str(directory / f"{number}-{name}")
        if isinstance(run, Mapping):  # else it is refused below
            data["run"] = {**run, "name": name, "directory": folders[name]}
        all_settings.append(train_settings(data, where=f"phase {name}"))
    return all_settings


def _with_folders(value: Any, folders: Mapping[str, str], *, where: str) -> Any:  # of a settings file
    """Return a value with the run directory of the phase in place of every `phase:NAME`."""
    if isinstance(value, Mapping):
        return {key: _with_folders(inner, folders, where=where) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_folders(inner, folders, where=where) for inner in value]
    if not isinstance(value, str) or not value.startswith(_PHASE):
        return value
    check_known("earlier phase", value.removeprefix(_PHASE), folders, where=where)
    return folders[value.removeprefix(_PHASE)]


def dry_runs(phases: Sequence[TrainSettings]) -> list[DryRun]:
    """Do a dry run of each phase, with the model of the first one. Raises: as `dry_run`."""

    def run(settings: TrainSettings) -> DryRun:  # whose model is freed before the next one is loaded
        context = build_run_context(settings)
        memory = partial(planned_memory, settings, context.method.objective, context.device.type)
        return dry_run(context, collect_plan(context, settings), settings.sft, memory)

    return [run(settings) for settings in untrained_phases(phases)]


def untrained_phases(phases: Sequence[TrainSettings]) -> list[TrainSettings]:
    """Return the phases as they are before any has trained: a model that an earlier one leaves is the policy's copy."""
    folders = {str(settings.run.path) for settings in phases}

    def begun(model: NamedModelSettings) -> NamedModelSettings:
        data = model.kind.model_dump()
        if data.get("run") not in folders:
            return model
        remaining = {key: value for key, value in data.items() if key not in ("run", "model")}
        return model.model_copy(update={"kind": Choice.model_validate(remaining)})

    return [
        settings.model_copy(update={"models": {name: begun(model) for name, model in settings.models.items()}})
        for settings in phases
    ]


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
    check_trusted(before, {})
    weights = str(require_checkpoint(before) / "model")
    update = {"adapter": weights} if settings.model.lora is not None else {"name": weights}
    return settings.model_copy(update={"model": settings.model.model_copy(update=update)})
