"""Self-training in rounds: search with the policy, fit a scorer to targets of its steps, train the policy, repeat.

Each round is two run directories below one folder, `round-01/scorer` and `round-01/policy`; `round-00/policy` is the
first policy's. What is complete there is kept, so that a process that was killed goes on where it was.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from envgym.config.plugins import override_settings
from envgym.config.settings import build_settings, places
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory, check_new
from envgym.seeds import derive_seed
from envgym.trainer.build import build_run_context, collect_plan
from envgym.trainer.learner.checkpoint import newest_checkpoint, require_checkpoint
from envgym.trainer.methods.protocols import CREDIT
from envgym.trainer.methods.self_training.base import Sections, SelfTrainingPlan
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.settings import TrainSettings, lay_over, settings_of_run
from envgym.trainer.train import train
from envgym.trainer.workflows.value_fit import HELD_BACK, ValueFit, fit_value

_REPORT = "report.html"
"""What a training run writes last."""


_VALUE_FIT: Final[Mapping[str, Any]] = {
    "credit": {"name": "gae_token", "decay": 1.0},
    "critic": {"detach": False, "lr": 0.02, "coef": 1.0},
    "curriculum": {"name": "uniform"},
    "search": {"name": "chain"},
    "filter": {"name": "keep_all"},
    "shaping": {"name": "none"},
    "annotate": [],
    "models": {},
    "sft": None,
    "optim": {"lr": 0.001, "epochs": 4, "minibatches": 64, "decay": "linear"},
}
"""Sections not taken over from the policy's run. With a decay of 1 the targets are the returns."""


class RoundRuns(NamedTuple):
    """The run directories of one round."""

    scorer: Path
    policy: Path


def self_train(
    settings: TrainSettings,
    plan: SelfTrainingPlan,
    *,
    rounds: int,
    episodes: int,
    scorer: Sections | None = None,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
    callbacks: Sequence[Callback] = (),
) -> list[RoundRuns]:
    """Train a first policy, then `rounds` rounds of a scorer and a policy; return the rounds' runs.

    Args:
        settings: of the first policy; `run.directory` is the folder of all runs. A round's policy takes over all
            sections that the plan does not choose.
        plan: the method.
        rounds: at least 1.
        episodes: that the scorer of each round is fitted on.
        scorer: sections of the fits, such as `optim` and `critic`.
        on_progress: called with a phase of a fit, what is done of it, and of how much.
        callbacks: of the policies' runs.

    Raises: SettingsError, RunError: settings that do not fit, or a folder that holds runs of other settings.
    """
    SettingsError.unless(rounds >= 1, "rounds", "be at least 1", rounds, where="self_train", do="pass at least 1")
    root = settings.run.path
    policy = _trained(_in_directory(settings, root / "round-00" / "policy"), callbacks)
    runs: list[RoundRuns] = []
    for number in range(1, rounds + 1):
        folder, seed = root / f"round-{number:02d}", derive_seed(settings.run.seed, "self-training", number) % 2**31
        plan_sections = plan.scorer_sections(runs[-1].scorer if runs else None)
        before = runs[-1].scorer if runs and getattr(plan, "continues_scorer", False) else None
        sections = {**plan_sections, **(scorer or {})}
        fitted = _fitted(policy, folder / "scorer", sections, episodes, seed, on_progress, before=before)
        data = _with_model(settings.model_dump(mode="json"), require_checkpoint(policy) / "model")
        data["run"] |= {"seed": seed}
        data = lay_over(data, plan.policy_sections(fitted))
        built = build_settings(TrainSettings, data, where=f"round {number}")
        policy = _trained(_in_directory(built, folder / "policy"), callbacks)
        runs.append(RoundRuns(fitted, policy))
    return runs


def _trained(settings: TrainSettings, callbacks: Sequence[Callback]) -> Path:
    """Train, or go on with a run that is there; one that has its report is complete."""
    path = settings.run.path
    if not (path / _REPORT).exists():
        train(settings, callbacks=callbacks, resume=(path / "run.json").exists())
    return path


def _fitted(
    policy: Path,
    directory: Path,
    sections: Sections,
    episodes: int,
    seed: int,
    on_progress: Callable[[str, int, int], None],
    *,
    before: Path | None,
) -> Path:
    """Fit a scorer to a policy's episodes, unless that is done; what an earlier process has left of it is dropped."""
    if directory.exists() and newest_checkpoint(directory) is None:
        shutil.rmtree(directory)
    if not directory.exists():
        planned = value_settings(policy, episodes=episodes, directory=directory)
        data = lay_over(planned.model_dump(mode="json"), sections)
        data["run"] |= {"seed": seed}
        fit_scorer(build_settings(TrainSettings, data, where="scorer"), policy, before=before, on_progress=on_progress)
    return directory


def value_settings(
    source: Path, *, episodes: int, directory: Path | None = None, overrides: Sequence[str] = ()
) -> TrainSettings:
    """Return the settings of a fit to the policy of a run: its model, agent, envs and sampling, and the plan of a fit.

    Args:
        source: the policy's run directory.
        episodes: on train tasks.
        directory: of the fit; None: beside the run.
        overrides: `key=value`, as `optim.lr=0.0003`.

    Raises: RunError, SettingsError, UnknownName: no such run, or settings that do not fit.
    """
    source_run = RunDirectory.open(source)
    theirs = settings_of_run(source_run)
    data = theirs.model_dump(mode="json")
    size = data["rollout"]["group_size"]
    if episodes < size * HELD_BACK:
        do = "raise --episodes"
        raise SettingsError.of("episodes", f"fill {HELD_BACK} groups of {size}", episodes, where="value", do=do)
    data["engine"]["backend"] = {"name": "transformers"}  # samples from the learner's own weights
    data |= {name: dict(part) if isinstance(part, Mapping) else part for name, part in _VALUE_FIT.items()}
    data["optim"]["micro_batch_tokens"] = theirs.optim.micro_batch_tokens
    data["run"] |= {"name": f"{source_run.name}-value", "directory": str(directory or f"{source}-value"), "steps": 1}
    data["rollout"]["groups"] = episodes // size
    data = override_settings(TrainSettings, data, overrides)
    if "decay" in getattr(CREDIT.load(str(data["credit"]["name"])), "model_fields", ()):
        data["credit"].setdefault("decay", _VALUE_FIT["credit"]["decay"])
    return build_settings(TrainSettings, data, where="value", sources=places(overrides))


def fit_scorer(
    settings: TrainSettings,
    policy: Path,
    *,
    before: Path | None = None,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> ValueFit:
    """Fit a value to what the newest checkpoint of the run `policy` earns; the other arguments are as for `fit_value`.

    Raises: SettingsError, RunError: settings or directories that do not fit; nothing has been written then.
    """
    checkpoint = require_checkpoint(policy)
    check_new(settings.run.path, another="choose another directory with --out")
    context = build_run_context(settings, checkpoint=checkpoint)
    plan, config = collect_plan(context, settings), settings.model_dump(mode="json")
    return fit_value(context, plan, config, before=before, on_progress=on_progress)


def _in_directory(settings: TrainSettings, directory: Path) -> TrainSettings:
    run = settings.run.model_copy(update={"directory": str(directory)})
    return settings.model_copy(update={"run": run})


def _with_model(data: dict[str, Any], model: Path) -> dict[str, Any]:
    """Return settings that begin with saved weights, or saved adapters where adapters train."""
    where = "name" if data["model"]["lora"] is None else "adapter"
    return {**data, "model": {**data["model"], where: str(model)}}
