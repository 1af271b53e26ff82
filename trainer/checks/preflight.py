"""What can be refused of a run before anything heavy is loaded: its directory and the ids of its envs."""

from envgym.registry import find
from envgym.runs import RunDirectory, check_new, check_same
from envgym.trainer.settings import TrainSettings, train_settings


def check_env_ids(settings: TrainSettings) -> None:
    """See that the envs are registered. Raises: UnknownName: one is not; an import path is judged when it is loaded."""
    for env in settings.envs:
        if ":" not in env.id:
            find(env.id)


def open_run_directory(settings: TrainSettings, *, resume: bool) -> RunDirectory | None:
    """Return the run to go on with, or None where a new one can begin; nothing is written.

    Raises: RunError: the directory is taken; or, to resume, holds no run, or one of other settings.
    """
    path = settings.run.path
    if not resume:
        check_new(path)
        return None
    run = RunDirectory.open(path)
    theirs = train_settings(run.config, where=str(path / "config.json")).model_dump(mode="json")
    check_same(theirs, settings.model_dump(mode="json"), where=path, but=("run.directory",))
    return run
