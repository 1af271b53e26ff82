"""Reward functions: what a rubric calls, checked when it is given and each time that it returns.

A function takes what it names: `answer`, `task`, `transcript`, `tool_calls`. It returns a number in [0, 1], a bool or a
`Verdict`. A verifier is one that takes the answer and the task.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from envgym.core.messages import Message, ToolCall
from envgym.core.tasks import Task
from envgym.core.turns import as_number
from envgym.errors import InvalidInput
from envgym.verifiers.base import Verdict

RewardFunction = Callable[..., float | Verdict]
"""Scores the answer to a task; its parameters are among `PARAMETERS`, or have defaults."""

PARAMETERS = ("answer", "task", "transcript", "tool_calls")
"""What a reward function may take: the final answer (`str`), the `Task`, the messages from the first observation to the
final answer (a tuple of `Message`), the calls of tools among them (a tuple of `ToolCall`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What is scored: an answer to a task, and how it came about."""

    answer: str
    task: Task
    transcript: tuple[Message, ...] = ()

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(call for message in self.transcript for call in message.tool_calls)


class CheckedFunction:
    """A reward function whose parameters were checked, and whose results are; picklable if the function is."""

    def __init__(self, function: RewardFunction) -> None:
        """Check the parameters. Raises: InvalidInput: it is no function, or takes what there is none of."""
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self._taken = _taken_parameters(function, self.name)

    def __call__(self, attempt: Attempt) -> Verdict:
        """Score an attempt. Raises: InvalidInput: the function returns no score. What the function raises."""
        result: object = self.function(**{name: getattr(attempt, name) for name in self._taken})
        return verdict_of(result, f"reward function {self.name}", task=attempt.task)


def verdict_of(result: object, name: str, *, task: Task) -> Verdict:
    """Return as a verdict what `name` returned. Raises: InvalidInput: no number in [0, 1], no bool and no `Verdict`."""
    if isinstance(result, Verdict):
        return result
    score = as_number(result)
    if score is None or not 0.0 <= score <= 1.0:
        must = "return a number in [0, 1], a bool or a Verdict"
        raise InvalidInput.of(name, must, repr(result), where=f"task {task.id}", do="correct it")
    return Verdict(score=score, reason=f"{name} returned {result}")


def _taken_parameters(function: RewardFunction, name: str) -> tuple[str, ...]:
    """Return which of `PARAMETERS` a function takes. Raises: InvalidInput: it takes others, or cannot be called."""
    what, must = f"reward function {name}", f"take parameters by name, among {', '.join(PARAMETERS)}"
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise InvalidInput.of(what, must, repr(function), where="Rubric", do="pass a function") from None
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    InvalidInput.unless(not is_async, what, "be a plain function", "async def", where="Rubric", do="write def")
    named = [item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    accepted = tuple(item.name for item in named if item.name in PARAMETERS)
    others = [item for item in parameters if item.name not in accepted and item.kind is not item.VAR_KEYWORD]
    stray = ", ".join(item.name for item in others if item.default is item.empty)
    InvalidInput.unless(not stray, what, must, stray, where="Rubric", do="rename or drop the others")
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters)
    return PARAMETERS if takes_any else accepted
