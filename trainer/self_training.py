"""Self-training in rounds: search with the policy, fit a scorer to targets of its steps, train the policy, repeat.

Each round is two run directories below one folder, `round-01/scorer` and `round-01/policy`; `round-00/policy` is the
first policy's. What is complete there is kept, so that a process that was killed goes on where it was.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from envgym.errors import SettingsError, sentence
from envgym.seeds import derive_seed
from envgym.settings import build_settings
from envgym.trainer.learner.checkpoint import newest_checkpoint, require_checkpoint
from envgym.trainer.methods.self_training.base import Sections, SelfTrainingPlan
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.settings import TrainSettings
from envgym.trainer.train import train
from envgym.trainer.workflows.value_fit import fit_value, value_settings

_REPORT = "report.html"
"""What a training run writes last."""


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
    if rounds < 1:
        raise SettingsError(sentence("rounds", "be at least 1", rounds, where="self_train", do="pass at least 1"))
    root = settings.run.path
    policy = _trained(_in_directory(settings, root / "round-00" / "policy"), callbacks)
    runs: list[RoundRuns] = []
    for number in range(1, rounds + 1):
        folder, seed = root / f"round-{number:02d}", derive_seed(settings.run.seed, "self-training", number) % 2**31
        chosen = plan.scorer_sections(runs[-1].scorer if runs else None)
        before = runs[-1].scorer if runs and getattr(plan, "continues_scorer", False) else None
        sections = {**chosen, **(scorer or {})}
        fitted = _fitted(policy, folder / "scorer", sections, episodes, seed, on_progress, before=before)
        data = _with_model(settings.model_dump(mode="json"), require_checkpoint(policy) / "model")
        data["run"] |= {"seed": seed}
        data = _laid_over(data, plan.policy_sections(fitted))
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
        data = _laid_over(planned.model_dump(mode="json"), sections)
        data["run"] |= {"seed": seed}
        fit_value(build_settings(TrainSettings, data, where="scorer"), policy, before=before, on_progress=on_progress)
    return directory


def _in_directory(settings: TrainSettings, directory: Path) -> TrainSettings:
    run = settings.run.model_copy(update={"directory": str(directory)})
    return settings.model_copy(update={"run": run})


def _with_model(data: dict[str, Any], model: Path) -> dict[str, Any]:
    """Return settings that begin with saved weights, or saved adapters where adapters train."""
    where = "name" if data["model"]["lora"] is None else "adapter"
    return {**data, "model": {**data["model"], where: str(model)}}


def _laid_over(data: Mapping[str, Any], sections: Sections) -> dict[str, Any]:
    """Lay sections over those of `data`; one that names another plug-in, or that was empty, is taken whole."""
    merged = dict(data)
    for name, section in sections.items():
        base = merged.get(name)
        is_same = isinstance(base, Mapping) and isinstance(section, Mapping) and "name" not in section
        merged[name] = {**base, **section} if is_same else section  # type: ignore[dict-item]  # both are mappings
    return merged
