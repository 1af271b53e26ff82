"""Callables of every kind as tools, and arguments that models write as JSON inside a string."""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from envgym.core.messages import Action, ToolCall
from envgym.errors import InvalidInput
from envgym.tools import run_calls, tools_of


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


def _no_docstring(x: int) -> int:
    return x


async def _later(x: int) -> None:
    """Wait."""


def _scaled(x: int, factor: int = 2) -> int:
    """Multiply.

    Args:
        x: A number.
        factor: What it is multiplied by.
    """
    return x * factor


@dataclass
class _Adder:
    """An object that can be called, and has no hash."""

    amount: int

    def __call__(self, x: int) -> int:
        """Add the amount to x."""
        return x + self.amount


class _Silent:
    """Describe a class."""

    def __call__(self, x: int) -> int:
        return -x


class _LaterObject:
    async def __call__(self, x: int) -> None:
        """Wait."""


def _logged(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    return run


@_logged
async def _hidden(x: int) -> dict[str, int]:
    """Wait, then double."""
    await asyncio.sleep(0)
    return {"twice": 2 * x}


def ask(function: Callable[..., object], **arguments: object) -> str:
    (name,) = tools_of(function)
    message = run_calls(tools_of(function), None, Action(tool_calls=[ToolCall(name=name, arguments=arguments)]))  # type: ignore[arg-type]  # JSON
    return message.messages[0].content


def test_partial_functions_and_callable_objects_are_tools() -> None:
    (item,) = tools_of(functools.partial(_scaled, factor=5)).values()
    assert (item.spec.name, item.spec.description) == ("_scaled", "Multiply.")
    assert item.spec.parameters["properties"] == {"x": {"type": "integer", "description": "A number."}}
    assert ask(functools.partial(_scaled, factor=5), x=3) == "15"
    assert ask(functools.partial(_scaled, 7), factor=3) == "21"
    assert ask(functools.partial(functools.partial(_scaled, 7), factor=4)) == "28"
    adder = _Adder(10)
    assert ask(adder, x=3) == "13"
    assert tools_of(adder) is tools_of(adder), "read once, though it has no hash"
    (silent,) = tools_of(_Silent()).values()
    assert (silent.spec.name, silent.spec.description) == ("_Silent", "Describe a class.")
    assert ask(functools.lru_cache(_scaled), x=4) == "8"


def test_coroutine_behind_a_decorator_is_run_inside_and_outside_an_event_loop() -> None:
    async def inside() -> str:
        return ask(_hidden, x=2)

    assert ask(_hidden, x=2) == asyncio.run(inside()) == '{"twice":4}'


@pytest.mark.parametrize(
    "function, rule",
    [
        (functools.partial(_later, 1), "be a plain function"),
        (_LaterObject(), "be a plain function"),
        (functools.partial(_no_docstring, 1), "have a docstring"),
        (print, "take arguments by name"),
        (dict, "have a signature that can be read|have type hints"),
    ],
)
def test_callable_that_cannot_be_a_tool_is_refused_in_one_sentence(function: Callable[..., object], rule: str) -> None:
    with pytest.raises(InvalidInput, match=f"tool must ({rule})"):
        tools_of(function)


def test_lists_and_objects_written_as_json_text_are_read_if_the_hint_takes_no_text() -> None:
    def place(point: Point, tags: list[int], text: str, size: int | None = None) -> str:
        """Place a point."""
        return f"{point} {tags} {text} {size}"

    arguments = {"point": '{"x": 1}', "tags": "[1, 2]", "text": "[1, 2]", "size": "null"}
    assert ask(place, **arguments) == "Point(x=1, y=0) [1, 2] [1, 2] None"
    assert "point: input should be" in ask(place, **{**arguments, "point": "{broken"}).replace("'", "")
