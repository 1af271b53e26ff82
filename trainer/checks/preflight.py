"""What stops a run: a directory or env ids that cannot be used, before anything heavy is loaded; too many failures."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from envgym.agents.models.loading import check_model, device_type
from envgym.agents.settings import EnvSettings, ModelSettings
from envgym.config.settings import build_settings
from envgym.core.trajectory import Group
from envgym.core.turns import Ending, Invalid
from envgym.errors import RunError, SettingsError
from envgym.runs.changes import check_same
from envgym.runs.directory import RunDirectory, check_new
from envgym.runs.trust import check_trusted
from envgym.trainer.settings import TrainRunSettings, TrainSettings

EXTENDABLE: Final = (
    "run.steps",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "run.keep_best",
    "run.keep_best_mode",
    "run.save_episodes_every",
    "run.max_invalid_rate",
    "run.trackers",
    "evaluation.every",
    "launch",
)
"""What may change when a run is resumed: how long it goes on, what is kept of it, and the processes beside it."""


def check_names(envs: Iterable[EnvSettings], model: ModelSettings) -> None:
    """See that the envs can be made, with the files of tasks that they name, and that the model can be found.

    Raises: UnknownName, InvalidInput: one cannot.
    """
    for env in envs:
        env.make().close()
    check_model(model.name)


def resolve_precision(settings: TrainSettings) -> TrainSettings:
    """Return the settings with the precision that `auto` stands for on the device of the run."""
    return settings.model_copy(update={"model": settings.model.on(device_type(settings.engine.device))})


def open_run_directory(settings: TrainSettings, *, resume: bool) -> RunDirectory | None:
    """Return the run to go on with, or None where a new one can begin; nothing is written.

    Args:
        settings: of now. With the precision `auto`, which only torch can resolve, the precision is not compared.
        resume: whether a run continues.

    Raises: RunError: the directory is taken; or, to resume, holds no run, or one of other settings.
    """
    path = settings.run.path
    if not resume:
        check_new(path)
        return None
    run = RunDirectory.open(path)
    check_trusted(path, {})  # what is written there must stay there
    theirs = build_settings(TrainSettings, run.config, where=str(path / "config.json"))
    if settings.model.precision != "auto":
        theirs = resolve_precision(theirs)
        precision, now = theirs.model.precision, settings.model.precision
        must = f"be {precision} as in the run, because other number types change what it learns"
        do = f"set model.precision={precision}, or start another run; auto depends on the device"
        RunError.unless(precision == now, "model.precision", must, now, where=str(path), do=do)
    else:
        theirs = theirs.model_copy(update={"model": theirs.model.model_copy(update={"precision": "auto"})})
    free = ("run.directory", *EXTENDABLE)
    check_same(theirs.model_dump(mode="json"), settings.model_dump(mode="json"), where=path, but=free)
    kinds = {f"models.{name}.kind": model.kind.settings for name, model in settings.models.items()}
    for section, values in {"optim": {"decay": settings.optim.decay}, **kinds}.items():
        decay = values.get("decay", "constant")
        if theirs.run.steps != settings.run.steps and decay != "constant":
            must, do = "stay as it is where a learning rate decays until the last step", "start another run"
            raise RunError.of("run.steps", must, settings.run.steps, where=f"{section}.decay={decay}", do=do)
    return run


def extend_run(run: RunDirectory, settings: TrainSettings, step: int) -> None:
    """Continue with the settings of now.

    Raises: RunError: they end before what is done, or ask for another best checkpoint of a run without further steps.
    """
    must, do = f"be at least the {step} that are done", "raise it"
    RunError.unless(settings.run.steps >= step, "run.steps", must, settings.run.steps, where=str(run.path), do=do)
    if settings.run.steps == step:
        former = run.config["run"]
        for name in ("keep_best", "keep_best_mode"):
            before, now = former.get(name, TrainRunSettings.model_fields[name].default), getattr(settings.run, name)
            must, do = (
                "stay as it is after the last step, because no evaluation follows",
                "raise run.steps, or leave it",
            )
            RunError.unless(
                before == now, f"run.{name}", must, f"{now} in place of {before}", where=str(run.path), do=do
            )
    run.change_config(settings.model_dump(mode="json"), step=step)


@contextmanager
def nothing_left_of_refused(run: RunDirectory) -> Iterator[None]:
    """Remove a new run whose settings are refused before anything is measured: the next one can take its place."""
    from envgym.trainer.learner.checkpoint import newest_checkpoint  # loads torch

    try:
        yield
    except SettingsError:
        if not run.metrics() and newest_checkpoint(run.path) is None:
            shutil.rmtree(run.path)
        raise


def check_invalid(groups: Sequence[Group], *, limit: float, step: int) -> None:
    """See that few episodes failed; those that a step went on without did not. Raises: RunError: above the limit."""
    episodes = [episode for group in groups for episode in group.trajectories]
    invalid = [episode.reward for episode in episodes if isinstance(episode.reward, Invalid)]
    reasons = [reward.reason for reward in invalid if reward.cause is not Ending.ERROR_ABORTED]
    if len(reasons) > limit * len(episodes):
        got = f"{len(reasons)} of {len(episodes)}, such as: {reasons[0]}"
        do = "fix the environment or its services, then resume"
        raise RunError.of("invalid episodes", f"stay below {limit:.0%}", got, where=f"step {step}", do=do)


def check_annotations(groups: Sequence[Group], *, limit: float, step: int) -> None:
    """See that few annotations of each name failed. Raises: RunError: a larger share than `limit` did."""
    annotations = [item for group in groups for tree in group.trees for item in tree.annotations]
    for name in sorted({item.name for item in annotations}):
        of_name = [item for item in annotations if item.name == name]
        errors = [item.error for item in of_name if item.error is not None]
        if len(errors) > limit * len(of_name):
            got = f"{len(errors)} of {len(of_name)}, such as: {errors[0]}"
            must, do = f"stay below {limit:.0%}", "fix the model that it calls, then resume"
            raise RunError.of(f"failed annotations of {name}", must, got, where=f"step {step}", do=do)
