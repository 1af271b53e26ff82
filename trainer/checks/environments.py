"""Choices that the environments of a run, their tasks, the agent or the group size do not suit are refused."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.search import Strategy
from envgym.agents.search.snapshots import Branching, resolve_branching
from envgym.core.task_needs import NeedsTaskInputs, TaskNeed
from envgym.core.tasks import Split, Task
from envgym.errors import SettingsError, check_known
from envgym.trainer.env_source import EnvSource
from envgym.trainer.methods.protocols import Curriculum
from envgym.trainer.methods.requirements import GroupPlugins
from envgym.wrappers.base import WRAPPER

_log = logging.getLogger(__name__)
_EVERY_SAMPLE: Final = 16
_SOME_SAMPLE: Final = 4096
_ENDLESS_SAMPLE: Final = 256
"""Most tasks of an env that are looked at for what every task must have, and for what at least one must have."""


def check_run(method: GroupPlugins, env_sources: Mapping[str, EnvSource], agent: AgentSettings, size: int) -> None:
    """Check that a method suits the envs, the agent and the size of groups. Raises: SettingsError: it does not."""
    check_search(method.search, env_sources, agent, group_size=size)
    for point in ("curriculum", "allocator"):
        check_program(getattr(method, point), agent, where=point)
        check_start_states(getattr(method, point), env_sources, where=point)
    check_skills(method.curriculum, env_sources)


def check_search(
    search: Strategy, env_sources: Mapping[str, EnvSource], agent: AgentSettings, *, group_size: int | None
) -> None:
    """Check that every env, the agent and the group size suit the search. Raises: SettingsError: they do not."""
    for env_source in env_sources.values():
        with closing(env_source.make()) as env:
            search.check(env, agent, group_size=group_size)


def check_start_states(method: object, env_sources: Mapping[str, EnvSource], *, where: str) -> None:
    """Check that episodes can go on from recorded states where a method asks for it. Raises: SettingsError."""
    for env_source in env_sources.values() if getattr(method, "needs_start_states", False) else ():
        with closing(env_source.make()) as env:
            resolve_branching(env, Branching.AUTO, where=where)


def check_program(method: object, agent: AgentSettings, *, where: str) -> None:
    """Check that a method leaves prompts and start states to a program, if there is one. Raises: SettingsError."""
    changes = {
        "start states": getattr(method, "needs_start_states", False),
        "hints": getattr(method, "fixed_prompts", ()),
        "other prompts": getattr(method, "tree_prompts", ()),
    }
    changed = [name for name, is_changed in changes.items() if is_changed]
    if agent.program is not None and changed:
        must = "leave prompts and start states as they are with agent.program, which writes its own messages"
        raise SettingsError.of(
            where, must, f"one with {' and '.join(changed)}", where="settings", do="choose another one"
        )


def check_skills(curriculum: Curriculum, env_sources: Mapping[str, EnvSource]) -> None:
    """Check that the skills of a curriculum are for envs of the run. Raises: UnknownName: one names another env."""
    for skill in getattr(curriculum, "skills", ()):
        for env in getattr(skill, "envs", ()):
            check_known("env", env, list(env_sources), where=f"curriculum, skill {skill.name}")


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


def check_wrapper_inputs(env_sources: Mapping[str, EnvSource]) -> None:
    """Check that the train tasks of each env have what its wrappers read. Raises: as `check_task_inputs`."""
    for label, source in env_sources.items():
        with closing(source.make()) as env:
            layers = list(_layers(env))
        for layer in layers:
            check_task_inputs({f"envs, wrapper {WRAPPER.name_of(layer)}": layer}, {label: source})


def _layers(env: object) -> Iterator[object]:
    while env is not None:
        yield env
        env = getattr(env, "env", None)


def warn_of_program_turns(credit: object, name: str, agent: AgentSettings) -> None:
    """Log that a credit of turns meets a program, whose conversations follow one another in an episode."""
    if agent.program is not None and getattr(credit, "reads_turn_order", False):
        text = (
            "credit %s reads the turns of an episode in their order, and agent.program may play several conversations"
        )
        _log.warning("%s one after another; a credit of whole episodes does not depend on it", text % name)


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
