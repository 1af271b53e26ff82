"""An env from an object whose public methods are its tools.

    class Safe:
        def reset(self, code: str) -> str: ...      # takes the fields of the payload; returns the first observation
        def turn(self, digit: int) -> str: ...      # a tool
        def score(self) -> float: ...               # read when the episode ends; a bool or a Verdict will do as well

The object is the state, so a fork copies it. A message without a tool call ends the episode; so does `is_over` (an
attribute, a property or a method), where the object has one.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from envgym.authoring.sources import TaskDraft, as_source, override_class
from envgym.core.messages import Action, Observation
from envgym.core.tasks import Task, TaskSource
from envgym.env import Env
from envgym.errors import InvalidInput
from envgym.party import Party
from envgym.records import Reply
from envgym.tools import Tool, public_tools
from envgym.verifiers.base import Verdict
from envgym.verifiers.functions import verdict_of

LIFECYCLE = frozenset({"reset", "score", "is_over", "oracle", "close"})
"""Methods that are not tools."""


class ToolObject(Protocol):
    """What an object must have; `is_over`, `oracle() -> str` and `close()` are used where it has them."""

    @property
    def reset(self) -> Callable[..., str]:
        """`reset(**payload)`, with a parameter `rng` where the object wants a NumPy generator."""
        ...

    def score(self) -> float | Verdict:
        """Return the reward of the episode: a number in [0, 1], a bool or a `Verdict`."""
        ...


ObjectT = TypeVar("ObjectT", bound=ToolObject)


class ToolObjectEnv(Env[ObjectT]):
    """An env whose state is an object and whose tools are its methods."""

    object_class: type[ObjectT]
    """Made anew, without arguments, for each episode."""

    def __init__(
        self,
        *,
        object_class: type[ObjectT] | None = None,
        tasks: TaskSource | Sequence[Task | TaskDraft] | None = None,
        system_prompt: str | None = None,
        chance_score: float | None = None,
        max_turns: int | None = None,
        parties: Mapping[str, Party] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Prepare an env; what is None is what the class declares.

        Raises: InvalidInput: a public method that cannot be a tool.
        """
        super().__init__(max_turns=max_turns, parties=parties, render_mode=render_mode)
        source = None if tasks is None else as_source(tasks)
        override_class(
            self, tasks=source, system_prompt=system_prompt, chance_score=chance_score, object_class=object_class
        )
        self.toolset()

    @property
    def name(self) -> str:
        """The id the env was made under, else the name of the object's class."""
        return self.spec.id if self.spec is not None else self.object_class.__name__

    def begin(self, task: Task) -> str:
        """Close the object of the episode before, make another, and reset it with a copy of the payload."""
        arguments = copy.deepcopy(dict(task.payload)) | self._extra(task)
        self.close()
        thing = self.object_class()
        try:
            first = thing.reset(**arguments)
        except BaseException:
            _close(thing)
            raise
        self.state = thing
        return first or task.prompt

    def _extra(self, task: Task) -> dict[str, Any]:  # Any: a generator or nothing
        """Check that the payload fits `reset`; return the generator if it is asked for."""
        names, required, takes_all = _parameters(self.object_class)
        stray = [name for name in task.payload if name not in names and not takes_all]
        missing = [name for name in required if name not in task.payload and name != "rng"]
        if stray or missing:
            change = f"{'drop' if stray else 'add'} {', '.join(stray or missing)}"
            what, got = f"{self.object_class.__name__}.reset({', '.join(names)})", ", ".join(task.payload) or "none"
            must, do = "take each field of the payload", f"{change} in the task source, or change reset"
            raise InvalidInput.of(what, must, got, where=f"task {task.id}", do=do)
        return {"rng": self.np_random} if "rng" in names and "rng" not in task.payload else {}

    def toolset(self) -> Mapping[str, Tool]:
        return public_tools(self.object_class, LIFECYCLE)

    def tool_owner(self) -> object:
        return self.state

    def respond(self, action: Action) -> Reply:
        """End the episode: a message without a call is the last one."""
        return Reply(reward=self._score(), terminated=True)

    def after_tools(self, observation: Observation) -> Reply:
        """Pay the score where the object is over, and at the turn limit."""
        over = getattr(self.state, "is_over", False)
        is_over = bool(over() if callable(over) else over)
        is_last = self.max_turns is not None and self._turn + 1 >= self.max_turns
        return Reply(
            observation=observation,
            reward=self._score() if is_over or is_last else 0.0,
            terminated=is_over,
        )

    def _score(self) -> float:
        return verdict_of(self.state.score(), f"{self.object_class.__name__}.score", task=self.task).score

    def oracle(self) -> str:
        solver = getattr(self.state, "oracle", None)
        return str(solver()) if solver is not None else super().oracle()

    def close(self) -> None:
        """Close the object, if it can be closed, and let it go."""
        _close(self.__dict__.pop("state", None))


def _close(thing: object) -> None:
    closing = getattr(thing, "close", None)
    if closing is not None:
        closing()


@cache
def _parameters(object_class: type) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return (all names, required names, takes any name) of the parameters of `reset`."""
    parameters = list(inspect.signature(object_class.reset).parameters.values())[1:]  # type: ignore[attr-defined]  # ToolObject has it
    named = [item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    required = tuple(item.name for item in named if item.default is item.empty)
    return tuple(item.name for item in named), required, len(named) < len(parameters)


def from_object(
    object_class: type[ObjectT],
    tasks: TaskSource | Sequence[Task | TaskDraft],
    *,
    system_prompt: str = "",
    chance_score: float = 0.0,
    max_turns: int | None = None,
) -> ToolObjectEnv[ObjectT]:
    """Return an env whose tools are the public methods of `object_class`; see the module for what the class needs.

    Raises: InvalidInput: a public method that cannot be a tool.
    """
    return ToolObjectEnv(
        object_class=object_class,
        tasks=tasks,
        system_prompt=system_prompt,
        chance_score=chance_score,
        max_turns=max_turns,
    )
