"""Verdicts on calls are those of the leaderboard's own checker: right answers and spoiled ones."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from envgym.core.json_types import JsonValue
from envgym.core.messages import ToolCall
from envgym.envs.tools._bfcl import answers, source
from envgym.verifiers.tool_call import match_calls
from tests.support.function_calls import EVERY, NEEDS_BFCL

pytestmark = NEEDS_BFCL
WITH_CALLS = (*source.ONE_CALL, *source.SEVERAL_CALLS)
Calls = Sequence[ToolCall]
EXTRA: Sequence[JsonValue] = ("", "x", 1, True, [], {})
"""Values of arguments that the right calls leave out."""


@pytest.fixture(scope="module")
def checker() -> Iterator[Any]:
    """Import the checker without the models of the leaderboard, whose packages are not installed."""
    name = "bfcl_eval.constants.model_config"
    models = ModuleType(name)
    vars(models)["MODEL_CONFIG_MAPPING"] = {"ours": SimpleNamespace(underscore_to_dot=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, models)
        yield import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
        for loaded in [key for key in sys.modules if key.startswith("bfcl_eval.eval_checker.ast_eval")]:
            patch.delitem(sys.modules, loaded)


def theirs(checker: Any, item: source.CallQuestion, calls: Calls) -> bool:
    """Return the checker's verdict."""
    made = [{call.name: dict(call.arguments)} for call in calls]
    python = import_module("bfcl_eval.constants.enums").Language.PYTHON
    return bool(checker.ast_checker([*item.functions], made, [*item.answers], python, item.kind, "ours")["valid"])


def ours(item: source.CallQuestion, calls: Calls) -> bool:
    return match_calls(calls, answers.expected_calls(item.kind, item.id)).correctness == 1.0


def with_argument(calls: Calls, place: int, key: str, value: JsonValue) -> Calls:
    return [
        replace(call, arguments={**call.arguments, key: value}) if number == place else call
        for number, call in enumerate(calls)
    ]


def other_values(value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """Yield values beside a right one: what was done to it, and what came of it."""
    yield "wrong type", [value]
    yield "wrong type", str(value) if not isinstance(value, str) else 7
    yield "wrong type", None
    if isinstance(value, bool):
        yield from (("wrong value", not value), ("wrong type", int(value)))
    elif isinstance(value, int | float):
        yield from (("wrong value", value + 1), ("whole or not", float(value)), ("wrong type", bool(value)))
        yield from [("whole or not", int(value))] if value == int(value) else []
    elif isinstance(value, str):
        yield from (("wrong value", f"{value}x"), ("spelling", value.upper()), ("spelling", f" {value}."))
        yield from (("wrong value", ""), ("spelling", value.replace("'", '"')))
    elif isinstance(value, list):
        yield from (("wrong value", [*value, *value[:1]]), ("wrong value", []), ("order in a list", value[::-1]))
        for _, part in [] if not value else other_values(value[0]):
            yield "inside", [part, *value[1:]]
    elif isinstance(value, Mapping):
        yield from (("wrong value", {**value, "no such": 1}), ("wrong value", {}))
        for key, part in value.items():
            yield "inside", {name: kept for name, kept in value.items() if name != key}
            for _, other in other_values(part):
                yield "inside", {**value, key: other}


def spoiled(item: source.CallQuestion, calls: Calls) -> Iterator[tuple[str, Calls]]:
    """Yield what was done to right calls, and the calls."""
    yield from (("missing call", calls[1:]), ("call twice", [*calls, calls[0]]), ("no call", []))
    yield from (("swapped calls", calls[::-1]), ("extra call", [*calls, ToolCall(name="no_such_function")]))
    for place, call in enumerate(calls):
        document = next(part for part in item.functions if answers.tool_name(str(part["name"])) == call.name)
        renamed = [
            replace(part, name=f"{part.name}_x") if number == place else part for number, part in enumerate(calls)
        ]
        yield "wrong name", renamed
        for function in item.functions:
            name = answers.tool_name(str(function["name"]))
            yield (
                "other function",
                [replace(part, name=name) if number == place else part for number, part in enumerate(calls)],
            )
        yield "extra key", with_argument(calls, place, "no_such_argument", 1)
        for key in answers.properties_of(document):
            if key not in call.arguments:
                yield from (("extra key", with_argument(calls, place, key, other)) for other in EXTRA)
        for key, value in call.arguments.items():
            kept = {name: part for name, part in call.arguments.items() if name != key}
            yield (
                "missing key",
                [replace(part, arguments=kept) if number == place else part for number, part in enumerate(calls)],
            )
            for done, other in other_values(value):
                yield done, with_argument(calls, place, key, other)


def possible(item: source.CallQuestion, calls: Calls) -> Iterator[Calls]:
    """Yield calls with each possible value of each argument, one at a time."""
    for place, (call, answer) in enumerate(zip(calls, item.answers, strict=True)):
        assert isinstance(answer, Mapping)
        [values] = answer.values()
        assert isinstance(values, Mapping)
        for key, options in values.items():
            assert isinstance(options, list)
            for option in options:
                if option == "":
                    kept = {name: part for name, part in call.arguments.items() if name != key}
                    yield [replace(part, arguments=kept) if n == place else part for n, part in enumerate(calls)]
                else:
                    yield with_argument(calls, place, key, answers._concrete(option))


GREEDY = {("parallel_178", "swapped calls")}
"""Where one call answers two of the expected ones: the checker pairs it with the first, though only another pairing
fits all calls, and so refuses what it accepts in another order."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", WITH_CALLS)
def test_verdicts_are_those_of_the_leaderboard(kind: str, checker: Any) -> None:
    counts: Counter[bool] = Counter()
    different: set[tuple[str, str]] = set()
    asked = [*source.questions(kind)][::EVERY]
    solvable = [(item, calls) for item in asked if (calls := answers.right_calls(kind, item.id))]
    for item, calls in solvable:
        assert (ours(item, calls), theirs(checker, item, calls)) == (True, True), item.id
        tried = [*(("possible", made) for made in possible(item, calls)), *spoiled(item, calls)]
        for done, made in tried:
            verdict = theirs(checker, item, made)
            counts[verdict] += 1
            if ours(item, made) is not verdict:
                different.add((item.id, done))
    ids = {item.id for item in asked}
    assert different == {found for found in GREEDY if found[0] in ids}
    assert counts[True] > 3 * len(solvable)  # 43,675 and 80,029 of all kinds
    assert counts[False] > 20 * len(solvable)


def test_questions_whose_answers_break_their_own_rules_are_known() -> None:
    items = [item for kind in WITH_CALLS for item in source.questions(kind)]
    broken = [item.id for item in items if answers.right_calls(item.kind, item.id) is None]
    assert broken == [
        "live_simple_106-63-0",
        "live_simple_112-68-0",
        "live_multiple_862-181-3",
        "live_multiple_964-207-0",
    ]
