"""Results of tools in every usual type are readable text, the same in every process."""

import collections
import datetime
import enum
import fractions
import math
import subprocess
import sys
import types
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import pytest
from pydantic import BaseModel

from envgym.core.messages import Action, ToolCall
from envgym.core.tool_results import as_text
from envgym.tools import run_calls, tools_of


class Level(enum.Enum):
    LOW = 1
    HIGH = "high"


@dataclass
class Location:
    name: str
    at: object = None


class City(BaseModel):
    name: str
    founded: datetime.date


class Pair(NamedTuple):
    a: int
    b: object


class Thing:
    def __init__(self) -> None:
        self.size, self._hidden = np.int64(3), "x"


class Opaque:
    __slots__ = ()


class Worded:
    def __str__(self) -> str:
        return "a thing"


def numbers() -> Iterator[object]:
    yield 1
    yield np.float64(0.5)


def cyclic() -> list[object]:
    items: list[object] = [1]
    items.append(items)
    return items


@pytest.mark.parametrize(
    "result, text",
    [
        ("text", "text"), (None, "Done."), (3, "3"), ([1, "a", None, True], '[1,"a",null,true]'),
        (np.int64(1), "1"), (np.float64(1.5), "1.5"), (np.bool_(True), "true"), (np.str_("hi"), "hi"),
        (np.array([1, 2]), "[1,2]"), (np.array(3), "3"), (np.array([[1.0, np.nan]]), "[[1.0,NaN]]"),
        (np.array(["a", "b"]), '["a","b"]'), ({"a": np.int64(1)}, '{"a":1}'), ([{"b": np.float32(0.5)}], '[{"b":0.5}]'),
        ({np.int64(1): 2}, '{"1":2}'), ({(1, 2): 3}, '{"[1,2]":3}'), ({Level.LOW: 1}, '{"1":1}'),
        (np.datetime64("2024-01-02"), "2024-01-02"),
        (float("nan"), "NaN"), ({"a": math.inf}, '{"a":Infinity}'),
        (Decimal("1.10"), "1.10"), ({"price": Decimal("1.10")}, '{"price":"1.10"}'), (fractions.Fraction(1, 3), "1/3"),
        (datetime.date(2024, 1, 2), "2024-01-02"), (datetime.datetime(2024, 1, 2, 3, 4), "2024-01-02T03:04:00"),
        ([datetime.time(3)], '["03:00:00"]'), (datetime.timedelta(days=1, hours=2), "1 day, 2:00:00"),
        ({10, 9, 1}, "[1,9,10]"), (frozenset({"b", "a"}), '["a","b"]'), ({"tags": {1, "x"}}, '{"tags":["x",1]}'),
        (b"abc", "abc"), (b"\xff\x00", r"b'\xff\x00'"), ([bytearray(b"a")], '["a"]'),
        (Location("Oslo", Location("inner")), '{"name":"Oslo","at":{"name":"inner","at":null}}'),
        ([Location("Oslo")], '[{"name":"Oslo","at":null}]'),
        (City(name="Oslo", founded=datetime.date(1048, 1, 1)), '{"name":"Oslo","founded":"1048-01-01"}'),
        (Path("/a/b"), "/a/b"), ([PurePosixPath("a")], '["a"]'), (uuid.UUID(int=5), str(uuid.UUID(int=5))),
        (Level.LOW, "1"), (Level.HIGH, "high"), ([Level.LOW], "[1]"), (Pair(1, np.int64(2)), "[1,2]"),
        (collections.deque([1, 2]), "[1,2]"), (range(3), "[0,1,2]"), ({"a": 1}.keys(), '["a"]'),
        (types.SimpleNamespace(a=1), "namespace(a=1)"), (Thing(), '{"size":3}'), (Opaque(), "<Opaque>"),
        (Worded(), "a thing"), ([Worded()], '["a thing"]'), (Worded, "Worded"), (ValueError("no"), "ValueError: no"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_result_of_any_usual_type_is_readable_text(result: object, text: str) -> None:
    def give() -> object:
        """Give."""
        return result

    ran = run_calls(tools_of(give), None, Action(tool_calls=[ToolCall(name="give")]))
    assert (ran.messages[0].content, ran.num_errors) == (text, 0)


def test_iterators_cycles_and_huge_integers_have_a_text() -> None:
    assert as_text(numbers()) == "[1,0.5]"
    assert as_text(cyclic()) == '[1,"..."]'
    assert as_text(10**5000).startswith("0x")
    assert len(as_text(np.zeros(1_000_000))) < 200


def test_sets_have_one_order_in_every_process() -> None:
    code = "from envgym.core.tool_results import as_text; print(as_text({chr(97 + i) for i in range(20)}))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "77")
    }
    assert len(texts) == 1


def test_no_text_holds_a_place_in_memory() -> None:
    for value in (Opaque(), [Opaque()], lambda: 0, len, object(), numbers):
        assert "0x" not in as_text(value)
