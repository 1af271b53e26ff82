"""Environments for TRL's `GRPOTrainer(environment_factory=...)`: a class with one method per tool.

TRL's loop calls the tools and ends when the model calls none, so a text of the model reaches the environment only by
the tool `say`. It cannot fork.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from envgym.authoring.openings import opening_messages, opening_text, prompt_text, system_text
from envgym.connect.tool_functions import check_names, method_of
from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split, TaskSource
from envgym.core.turns import Scored
from envgym.errors import InfrastructureError, InvalidInput
from envgym.played import EpisodeOver, Opening, PlayedEpisode
from envgym.registry import maker
from envgym.tools import ToolSpec
from envgym.wrappers import AnyEnv

if TYPE_CHECKING:  # of the extra `train`
    from datasets import Dataset

IS_OVER: Final = "The episode is over."
"""What a tool answers after the end, and what follows the last reply of the environment."""
UNAVAILABLE: Final = "The environment could not be started. The episode is over."
PROBED_TASKS: Final = 3
"""Tasks whose tools and system messages are compared when the class is made."""
_SAY_WORDS = "Send a message or a final answer to the environment as text, and read its reply."
_RESERVED = ("reset", "get_reward")


class TrlEnvironment:
    """One environment as TRL calls it; the tools of the environment are methods of its subclass."""

    _where: ClassVar[str]
    _split: ClassVar[Split]
    _tools: ClassVar[tuple[ToolSpec, ...]]
    _make: ClassVar[Callable[[], AnyEnv]]

    def __init__(self) -> None:
        self._episode = PlayedEpisode(type(self)._make())

    def reset(
        self,
        prompt: Any = None,  # text or messages, as the row has them
        split: str | None = None,
        index: int | None = None,
        seed: int | None = None,
        **row: Any,  # further columns
    ) -> str:
        """Begin the episode of a row of `TrlFactory.dataset`; return what TRL adds to the last message of the user.

        Raises: InvalidInput: the row names no task, or its tools are not those of the class.
        """
        if index is None:
            must, do = "hold index, so that the episodes of a group have one task", "pass train_dataset=env.dataset(n)"
            raise InvalidInput.of("row of the data set", must, sorted(row) or "no columns", where=self._where, do=do)
        try:
            opening = self._episode.open(split=split or self._split, index=index, seed=seed)
        except InfrastructureError:
            return UNAVAILABLE
        _check_tools(opening, self._tools, self._where)
        has_system = _system_of(prompt) == system_text(opening.messages)
        return prompt_text(opening.messages) if has_system else opening_text(opening.messages)

    def get_reward(self) -> float | None:
        """Return the reward of the episode so far; None: it is invalid, and TRL leaves the completion out."""
        reward = self._episode.result().reward
        return reward.value if isinstance(reward, Scored) else None

    def _call(self, tool: str, arguments: JsonObject) -> str:
        try:
            turn = self._episode.call(tool, arguments)
        except EpisodeOver:
            return IS_OVER
        return _shown(str(turn.observation), is_over=turn.ending is not None)

    def _say(self, tool: str, arguments: JsonObject) -> str:
        text = arguments.get("text")
        if not isinstance(text, str) or len(arguments) != 1:
            return f"{tool} was not run: it takes one argument, text, which must be a string."
        try:
            turn = self._episode.say(text)
        except EpisodeOver:
            return IS_OVER
        return _shown(str(turn.observation), is_over=turn.ending is not None)


def _shown(text: str, *, is_over: bool) -> str:
    return "\n\n".join(part for part in (text, IS_OVER if is_over else "") if part)


class TrlFactory:
    """What `GRPOTrainer` takes as `environment_factory`; it also makes the data set, and closes what it made."""

    def __init__(self, cls: type[TrlEnvironment], env_id: str, tasks: TaskSource, system_prompt: str) -> None:
        """Take the class; `environment` makes it."""
        self.environment_class = cls
        self._env_id, self._tasks, self._system_prompt = env_id, tasks, system_prompt
        self._instances: list[TrlEnvironment] = []

    def __call__(self) -> TrlEnvironment:
        """Return a new instance, which TRL keeps and resets."""
        instance = self.environment_class()
        self._instances.append(instance)
        return instance

    def rows(self, count: int, *, start: int = 0, seed: int = 0) -> list[dict[str, Any]]:
        """Return rows of `prompt`, `split`, `index` and `seed` for the tasks `start` to `start + count - 1`.

        The prompt holds the system message if all tasks have the same one; otherwise `reset` returns it with the task.

        Raises: InvalidInput: the split has fewer tasks.
        """
        split = self.environment_class._split
        size = self._tasks.size(split)
        if start < 0 or count < 1 or (size is not None and start + count > size):
            bounds = "be at least 0 and at least 1" if size is None else f"lie among the {size} tasks of {split}"
            got = f"start={start}, count={count}"
            raise InvalidInput.of("tasks", bounds, got, where=self._env_id, do="ask for other ones")
        indices = range(start, start + count)
        system = [{"role": "system", "content": self._system_prompt}] if self._is_system_shared(indices) else []
        prompt = [*system, {"role": "user", "content": ""}]
        return [{"prompt": prompt, "split": split.value, "index": index, "seed": seed + index} for index in indices]

    def _is_system_shared(self, indices: Iterable[int]) -> bool:
        """Return whether there is a system message, and no task has another one in its prompt than the first task."""
        if not self._system_prompt:
            return False
        split = self.environment_class._split
        tasks = (self._tasks.task(split, index) for index in (0, *indices))
        return len({system_text(opening_messages(task)) for task in tasks}) == 1

    def dataset(self, count: int, *, start: int = 0, seed: int = 0) -> "Dataset":
        """Return `rows` as a data set, the `train_dataset` of the trainer.

        Raises: InvalidInput: as `rows`, or the package `datasets` is not installed.
        """
        try:
            from datasets import Dataset
        except ImportError as error:
            do = "pip install datasets"
            raise InvalidInput.of("datasets", "be installed", str(error), where=self._env_id, do=do) from error
        return Dataset.from_list(self.rows(count, start=start, seed=seed))

    def close(self) -> None:
        """Close the environments of all instances; may be called twice."""
        for instance in self._instances:
            instance._episode.close()


def environment(
    env_id: str,
    *,
    split: Split | str = Split.TRAIN,
    settings: Mapping[str, Any] | None = None,
    say: str | None = "say",
    name: str | None = None,
) -> TrlFactory:
    """Return an environment as TRL's `environment_factory`.

    Args:
        env_id: as in `envgym.make`.
        split: the split that tasks are of.
        settings: keyword arguments of the environment.
        say: name of the tool by which a text reaches the environment; None: the model has the tools alone.
        name: of the class, after which TRL names the reward's column; None: made from the id.

    Raises: InvalidInput, UnknownName: no such env; it has no tools and `say` is None; a tool has a name that TRL
        reserves or Python cannot write; tasks have different tools. InfrastructureError: it could not be set up.
    """
    part = Split.parse(split, where="environment")
    make = partial(maker(env_id), **(settings or {}))
    env = make()
    episode = PlayedEpisode(env)
    try:
        tasks, size = env.unwrapped.tasks, env.unwrapped.tasks.size(part)
        InvalidInput.unless(size != 0, "split", "hold tasks", part.value, where=env_id, do="choose another split")
        probed = range(PROBED_TASKS if size is None else min(size, PROBED_TASKS))
        opening, *others = [episode.open(split=part, index=index, seed=0) for index in probed]
        for other in others:
            _check_tools(other, opening.tools, env_id)
    finally:
        episode.close()
    if not opening.tools and say is None:
        do = "leave say out, so that the model can answer in text"
        raise InvalidInput.of("environment", "have tools, or a tool for text", "none", where=env_id, do=do)
    check_names(opening.tools, _RESERVED, where=env_id)
    members: dict[str, Any] = {spec.name: method_of(spec, TrlEnvironment._call) for spec in opening.tools}
    if say is not None:
        members |= _say_tool(say, opening.tools, env_id)
    system, *other_systems = {system_text(item.messages) for item in (opening, *others)}
    private = {
        "_where": env_id,
        "_split": part,
        "_tools": opening.tools,
        "_make": make,
        "__doc__": f"{env_id} for TRL.",
    }
    cls = type(name or _class_name(env_id), (TrlEnvironment,), {"__doc__": f"{env_id} for TRL.", **private, **members})
    return TrlFactory(cls, env_id, tasks, "" if other_systems else system)


def _say_tool(say: str, tools: tuple[ToolSpec, ...], where: str) -> dict[str, Callable[..., str]]:
    if any(spec.name == say for spec in tools):
        must, do = "be no tool of the environment", "pass another name as say"
        raise InvalidInput.of("say", must, say, where=where, do=do)
    properties: JsonObject = {"text": {"type": "string", "description": "The message."}}
    parameters: JsonObject = {"type": "object", "properties": properties, "required": ["text"]}
    spec = ToolSpec(name=say, description=_SAY_WORDS, parameters=parameters)
    check_names([spec], _RESERVED, where=where)
    return {say: method_of(spec, TrlEnvironment._say)}


def _check_tools(opening: Opening, tools: tuple[ToolSpec, ...], where: str) -> None:
    if opening.tools != tools:
        must, do = "have the tools of the first task", "choose settings with which all tasks have the same tools"
        got = f"{opening.task_id} with {', '.join(spec.name for spec in opening.tools) or 'none'}"
        raise InvalidInput.of("every task", must, got, where=where, do=do)


def _system_of(prompt: Any) -> str:  # as the row has it
    first = prompt[0] if isinstance(prompt, list) and prompt else None
    is_system = isinstance(first, Mapping) and first.get("role") == "system"
    content = first.get("content") if is_system else None  # type: ignore[union-attr]  # it is a mapping
    return content if isinstance(content, str) else ""


def _class_name(env_id: str) -> str:
    """Return the last part of an id in the form of a class: `puzzles/guess_number-v0` gives `GuessNumber`."""
    last = re.sub(r"-v\d+$", "", re.split(r"[/:]", env_id.rstrip("/"))[-1])
    words = "".join(word[:1].upper() + word[1:] for word in re.split(r"\W|_", last) if word)
    return words if words[:1].isalpha() else f"Env{words}"
