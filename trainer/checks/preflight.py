"""What stops a run: a directory or env ids that cannot be used, before anything heavy is loaded; too many failures."""

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

from envgym.agents.models.loading import check_model
from envgym.agents.settings import EnvSettings, ModelSettings
from envgym.config.settings import build_settings
from envgym.core.tasks import Split, Task
from envgym.core.trajectory import Group
from envgym.core.turns import Ending, Invalid
from envgym.errors import RunError, SettingsError
from envgym.runs.changes import check_same
from envgym.runs.directory import RunDirectory, check_new
from envgym.runs.trust import check_trusted
from envgym.trainer.env_source import EnvSource
from envgym.trainer.methods.task_needs import NeedsTaskInputs, TaskNeed
from envgym.trainer.settings import TrainSettings
from envgym.wrappers.prompts import GivenHint

_log = logging.getLogger(__name__)

_EVERY_SAMPLE: Final = 16
_SOME_SAMPLE: Final = 4096
_ENDLESS_SAMPLE: Final = 256
"""Most tasks of an env that are looked at for what every task must have, and for what at least one must have."""
EXTENDABLE: Final = (
    "run.steps",
    "run.checkpoint_every",
    "run.keep_checkpoints",
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


def check_task_inputs(plugins: Mapping[str, object], env_sources: Mapping[str, EnvSource]) -> None:
    """Check that the train tasks have the metadata and payload that plug-ins read.

    Args:
        plugins: by the place in the settings that chose each.
        env_sources: of the run, by label.

    Raises: SettingsError: a task lacks what every task must have, or no task has what some must have. InvalidInput: a
        task has a value that the plug-in cannot use.
    """
    for where, plugin in plugins.items():
        for need in plugin.task_needs() if isinstance(plugin, NeedsTaskInputs) else ():
            if need.every:
                _check_every_task(need, env_sources, where=where)
            else:
                _check_some_task(need, env_sources, where=where)


def check_hint_wrappers(env_sources: Mapping[str, EnvSource]) -> None:
    """Check that train tasks have the hints that wrappers show. Raises: SettingsError: no task of an env has one."""
    do = "set metadata_key to a key that holds a hint, or add hints to the tasks"
    for label, source in env_sources.items():
        with closing(source.make()) as env:
            keys = [layer.metadata_key for layer in _layers(env) if isinstance(layer, GivenHint)]
        for need in [TaskNeed(key=key, read=partial(_metadata_under, key), do=do) for key in keys if key is not None]:
            _check_some_task(need, {label: source}, where=f"envs, wrapper {GivenHint.key}")


def _metadata_under(key: str, task: Task) -> object:
    return task.metadata.get(key)


def _layers(env: object) -> Iterator[object]:
    while env is not None:
        yield env
        env = getattr(env, "env", None)


def warn_of_idle_choices(
    curriculum: object, annotators: Iterable[str], readers: Iterable[object], env_sources: Mapping[str, EnvSource]
) -> None:
    """Log choices that are likely to do nothing.

    Args:
        curriculum: of the run.
        annotators: names of the annotations that the run makes.
        readers: the plug-ins that may read them, by their attribute `annotation`.
        env_sources: of the run.
    """
    sizes = [source.tasks.size(Split.TRAIN) for source in env_sources.values()]
    if getattr(curriculum, "reads_stats", False) and all(size is None for size in sizes):
        text = "curriculum %s chooses by results of earlier steps, but the tasks do not end: none is drawn twice"
        _log.warning(text, type(curriculum).__name__)
    if getattr(curriculum, "chooses_envs", False) and len(sizes) == 1:
        _log.warning("curriculum %s chooses among envs, but there is one", type(curriculum).__name__)
    plugins = list(readers)
    if all(type(plugin).__module__.startswith("envgym.") for plugin in plugins):
        read = {getattr(plugin, "annotation", None) for plugin in plugins}
        text = "annotations %s train nothing: no shaping, filter, credit, curriculum or demonstrations read them"
        for name in (name for name in annotators if name not in read):
            _log.warning(text, name)


def _check_every_task(need: TaskNeed, env_sources: Mapping[str, EnvSource], *, where: str) -> None:
    for source in env_sources.values():
        for task in _sample_tasks(source, _EVERY_SAMPLE):
            if not need.read(task):
                got = f"a task of {source.label}{_with_keys(need, need.keys_of(task))}"
                raise SettingsError.of(
                    need.key, f"{need.rule} every task", got, where=f"{where}, task {task.id}", do=need.do
                )


def _check_some_task(need: TaskNeed, env_sources: Mapping[str, EnvSource], *, where: str) -> None:
    counts: list[str] = []
    for source in env_sources.values():
        num_tasks, keys = 0, dict[str, None]()
        for task in _sample_tasks(source, _SOME_SAMPLE):
            if need.read(task):
                return
            num_tasks, keys = num_tasks + 1, keys | dict.fromkeys(need.keys_of(task))
        counts.append(f"none in {num_tasks} tasks of {source.label}{_with_keys(need, keys)}")
    raise SettingsError.of(need.key, f"{need.rule} some tasks", " and ".join(counts), where=where, do=need.do)


def _with_keys(need: TaskNeed, keys: Iterable[str]) -> str:
    return "" if need.holder is None else f" with {', '.join(keys) or 'nothing'}"


def _sample_tasks(source: EnvSource, count: int) -> Iterator[Task]:
    """Yield at most `count` train tasks, evenly spread over those of the env; the first ones where they do not end."""
    size = source.tasks.size(Split.TRAIN)
    if size is None:
        indices: Sequence[int] = range(min(count, _ENDLESS_SAMPLE))
    else:
        indices = range(size) if size <= count else [place * size // count for place in range(count)]
    return (source.tasks.task(Split.TRAIN, index) for index in indices)


def open_run_directory(settings: TrainSettings, *, resume: bool) -> RunDirectory | None:
    """Return the run to go on with, or None where a new one can begin; nothing is written.

    Raises: RunError: the directory is taken; or, to resume, holds no run, or one of other settings.
    """
    path = settings.run.path
    if not resume:
        check_new(path)
        return None
    run = RunDirectory.open(path)
    check_trusted(path, {})  # what is written there must stay there
    theirs = build_settings(TrainSettings, run.config, where=str(path / "config.json"))
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
    """Go on with the settings of now. Raises: RunError: they end before what is done."""
    must, do = f"be at least the {step} that are done", "raise it"
    RunError.unless(settings.run.steps >= step, "run.steps", must, settings.run.steps, where=str(run.path), do=do)
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
