"""Tools: schemas from signatures, checked arguments, and answers to calls that cannot be run."""

import json
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.messages import Action, Role, ToolCall
from envgym.errors import InvalidInput, ToolError, ToolInfraFailure
from envgym.tools import MAX_CALLS, collect_tools, public_tools, run_calls, tool, tools_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Desk:
    """Tools of every kind."""

    def __init__(self) -> None:
        self.sum = 0

    @tool
    def add(self, amount: int, times: int = 1) -> int:
        """Add to the sum.

        It is kept.

        Args:
            amount: what is added,
                in units
            times (int): how often

        Returns:
            The sum.
        """
        self.sum += amount * times
        return self.sum

    @tool
    def paint(self, colour: Colour, at: Point, *, mode: Literal["thin", "thick"] = "thin") -> dict[str, object]:
        """Paint a point."""
        return {"colour": colour, "x": at.x, "mode": mode}

    @staticmethod
    @tool
    def json(copy: str, schema: list[float] | None = None) -> str | None:
        """Take arguments whose names pydantic uses itself."""
        return None if schema is None else copy

    @tool
    def refuse(self) -> str:
        """Refuse."""
        raise ToolError("The shop is closed on Sundays; come on Monday.")

    @tool
    def lose(self) -> str:
        """Lose the sandbox."""
        raise ToolInfraFailure("sandbox died")

    @tool
    def break_down(self) -> str:
        """Hold a bug."""
        return str(1 // 0)

    @tool
    def shout(self, length: int) -> str:
        """Return many characters."""
        return "a" * length

    def helper(self) -> str:
        return "not a tool"


class Quiet(Desk):
    """Overrides one tool without marking it, removes one, adds one."""

    lose = None  # type: ignore[assignment]  # how a subclass removes a tool

    def add(self, amount: int, times: int = 2) -> int:
        """Add twice."""
        return super().add(amount, times)

    @tool
    def last(self) -> str:
        """Come last."""
        return ""


def call(owner: object, name: str, **arguments: object) -> str:
    """Run one call and return the content of its answer."""
    action = Action(tool_calls=[ToolCall(name=name, arguments=arguments)])  # type: ignore[arg-type]  # JSON by use
    cls: type = type(owner)
    return run_calls(collect_tools(cls), owner, action).messages[0].content


def test_the_schema_comes_from_hints_and_the_words_from_the_docstring() -> None:
    spec = collect_tools(Desk)["add"].spec
    assert spec.description == "Add to the sum.\n\nIt is kept."
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "amount": {"type": "integer", "description": "what is added, in units"},
            "times": {"type": "integer", "description": "how often", "default": 1},
        },
        "required": ["amount"],
        "additionalProperties": False,
    }


def test_every_schema_is_a_valid_json_schema() -> None:
    for item in collect_tools(Desk).values():
        jsonschema.Draft202012Validator.check_schema(item.spec.parameters)
        json.dumps(item.spec.parameters)


def test_arguments_are_converted_to_the_hinted_types() -> None:
    desk = Desk()
    assert call(desk, "add", amount="3", times=2.0) == "6"  # "3" and 2.0 are whole numbers
    assert call(desk, "paint", colour="red", at={"x": "7"}) == '{"colour":"red","x":7,"mode":"thin"}'
    assert call(desk, "json", copy="x", schema=["1", 2]) == "x"


def test_a_result_of_none_is_answered_with_done() -> None:
    assert call(Desk(), "json", copy="x") == "Done."


@pytest.mark.parametrize(
    "name, arguments, advice",
    [
        ("add", {}, "add was not run: argument 'amount' is missing. Usage: add(amount: integer, times: integer = 1)."),
        ("add", {"amont": 1}, "is missing; there is no argument 'amont' (did you mean 'amount'?). Usage: "),
        ("add", {"amount": "many"}, "argument 'amount': input should be a valid integer"),
        ("add", {"amount": 1.5}, "argument 'amount': input should be a valid integer"),
        ("add", {"amount": 1, "p0": 2}, "there is no argument 'p0'"),
        ("json", {"copy": 3}, "argument 'copy': input should be a valid string, got 3."),
        ("json", {"copy": "", "schema": ["nan"]}, "input should be a finite number, got 'nan'"),
        ("paint", {"colour": "green", "at": {"x": 1}}, "argument 'colour': input should be 'red' or 'blue', got"),
        ("paint", {"colour": "red", "at": {}}, "argument 'at.x' is missing"),
        ("refuse", {}, "The shop is closed on Sundays; come on Monday."),
        ("ad", {}, "There is no tool 'ad'. Did you mean add? The tools are: add(amount: integer, times:"),
    ],
)  # fmt: skip
def test_call_that_cannot_be_run_is_answered_with_advice(name: str, arguments: dict[str, object], advice: str) -> None:
    assert advice in call(Desk(), name, **arguments)


def test_calls_run_in_order_and_each_gets_one_message() -> None:
    desk = Desk()
    calls = [ToolCall(name="add", arguments={"amount": n}, id=f"c{n}") for n in (1, 2)] + [ToolCall(name="no")]
    ran = run_calls(collect_tools(Desk), desk, Action(tool_calls=calls, malformed=["Broken JSON."]))
    assert [message.content for message in ran.messages[:2]] == ["1", "3"]
    assert [message.tool_call_id for message in ran.messages] == ["c1", "c2", None, None]
    assert [message.name for message in ran.messages] == ["add", "add", "no", None]
    assert {message.role for message in ran.messages} == {Role.TOOL}
    assert ran.messages[3].content == "Broken JSON."
    assert [message.is_error for message in ran.messages] == [False, False, True, True]
    assert ran.num_errors == 2


def test_a_failure_of_infrastructure_is_raised_and_so_is_what_the_author_names() -> None:
    with pytest.raises(ToolInfraFailure, match="sandbox died"):
        call(Desk(), "lose")
    action = Action(tool_calls=[ToolCall(name="break_down")])
    with pytest.raises(ZeroDivisionError):
        run_calls(collect_tools(Desk), Desk(), action, propagated=(OSError, ArithmeticError))


def test_a_bug_is_answered_with_type_and_message_and_each_time_is_an_error() -> None:
    calls = [ToolCall(name="break_down"), ToolCall(name="add", arguments={"amount": 2}), ToolCall(name="break_down")]
    ran = run_calls(collect_tools(Desk), Desk(), Action(tool_calls=calls))
    failure = "break_down failed: ZeroDivisionError: integer division or modulo by zero"
    assert [message.content for message in ran.messages] == [failure, "2", failure]
    assert ran.num_errors == 2


def test_long_results_and_many_calls_are_cut_with_a_note() -> None:
    desk = Desk()
    assert call(desk, "shout", length=20_000) == "a" * 20_000
    cut = call(desk, "shout", length=20_001)
    assert cut == "a" * 20_000 + "\n[cut: the first 20000 of 20001 characters are shown]"
    action = Action(tool_calls=[ToolCall(name="add", arguments={"amount": 1})] * (MAX_CALLS + 5))
    ran = run_calls(collect_tools(Desk), desk, action)
    assert desk.sum == MAX_CALLS
    assert (len(ran.messages), ran.num_errors) == (MAX_CALLS + 5, 5)
    assert ran.messages[-1].content.startswith("Not run: at most 64 calls")


def test_calls_of_one_message_share_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.tools.MAX_CALLS_S", 0.05)

    def wait() -> str:
        """Wait."""
        time.sleep(0.1)
        return "waited"

    ran = run_calls(tools_of(wait), None, Action(tool_calls=[ToolCall(name="wait", arguments={})] * 5))
    contents = [message.content for message in ran.messages]
    assert contents[:1] == ["waited"]
    assert contents[1:] == ["Not run: the calls before took more than 120 s. Send the others in your next message."] * 4
    assert ran.num_errors == 4


def test_names_of_any_length_give_short_advice() -> None:
    assert len(call(Desk(), "x" * 100_000)) < 1000
    assert len(call(Desk(), "add", **{"x" * 100_000: 1, **{f"k{i}": "v" * 1000 for i in range(1000)}})) < 2000


def test_without_tools_the_advice_is_to_answer_in_text() -> None:
    ran = run_calls({}, None, Action(tool_calls=[ToolCall(name="add")]))
    assert ran.messages[0].content == "There is no tool 'add': this task has no tools. Answer in plain text."


def test_subclasses_inherit_override_remove_and_add_tools() -> None:
    assert list(collect_tools(Desk)) == ["add", "paint", "json", "refuse", "lose", "break_down", "shout"]
    assert list(collect_tools(Quiet)) == ["add", "paint", "json", "refuse", "break_down", "shout", "last"]
    assert collect_tools(Quiet)["add"].spec.description == "Add twice."
    assert call(Quiet(), "add", amount=5) == "10"


def test_tools_are_collected_once_per_class() -> None:
    assert collect_tools(Desk) is collect_tools(Desk)


def test_public_tools_are_the_public_methods_outside_the_lifecycle() -> None:
    class Lamp:
        colour = Colour

        def reset(self) -> str:
            return ""

        def press(self) -> str:
            """Press the switch."""
            return "on"

        def _wire(self) -> None: ...

        @property
        def is_over(self) -> bool:
            return False

    assert list(public_tools(Lamp, frozenset({"reset"}))) == ["press"]


def test_functions_are_tools_without_an_owner() -> None:
    def double(x: float) -> float:
        """Double a number."""
        return 2 * x

    tools = tools_of(double)
    action = Action(tool_calls=[ToolCall(name="double", arguments={"x": 1.5})])
    assert run_calls(tools, None, action).messages[0].content == "3.0"
    with pytest.raises(InvalidInput, match="tools must have different names, got double"):
        tools_of(double, double)


def _no_docstring(x: int) -> int:
    return x


def _no_hint(x):  # type: ignore[no-untyped-def]  # the fault under test
    """Have no hint."""


def _many(*numbers: int) -> None:
    """Take many."""


async def _later(x: int) -> None:
    """Wait."""


def _wrong_words(x: int) -> None:
    """Describe another argument.

    Args:
        y: what
    """


def _strange(x: Desk) -> None:
    """Take a live object."""


@pytest.mark.parametrize(
    "function, rule",
    [
        (_no_docstring, "have a docstring"),
        (_no_hint, "have a type hint for each argument, got none for x"),
        (_many, "take arguments by name"),
        (_later, "be a plain function"),
        (_wrong_words, r"document only its arguments \(x\), got y"),
        (_strange, "have type hints that JSON can fill"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(function: Callable[..., object], rule: str) -> None:
    with pytest.raises(InvalidInput, match=f"tool must {rule}"):
        tools_of(function)


@given(st.dictionaries(st.text(max_size=10), st.none() | st.integers() | st.text() | st.lists(st.integers())))
def test_any_arguments_give_an_answer(arguments: dict[str, object]) -> None:
    assert call(Desk(), "add", **arguments)


def test_specs_and_actions_survive_pickling() -> None:
    spec = collect_tools(Desk)["add"].spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_call_costs_less_than_a_tenth_of_a_millisecond() -> None:
    tools, desk = collect_tools(Desk), Desk()
    action = Action(tool_calls=[ToolCall(name="add", arguments={"amount": "3"})])
    run_calls(tools, desk, action)
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(1000):
            run_calls(tools, desk, action)
        best = min(best, (time.process_time() - start) / 1000)
    assert best < 100e-6  # about 6 microseconds on one core of 2024
