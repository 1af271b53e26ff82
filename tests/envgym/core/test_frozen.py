"""Records that fill their slots directly are those that `dataclass` makes."""

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.frozen import quick_init, quick_maker
from envgym.core.turns import Cost, Scored
from envgym.errors import InvalidInput


def record_class(decorate: Callable[[type], type]) -> Any:  # a class that both ways make
    @decorate
    @dataclass(frozen=True, slots=True)
    class Record:
        """Has every kind of field."""

        first: int
        second: str = "two"
        items: list[int] = field(default_factory=list, kw_only=True)
        last: float | None = field(default=None, kw_only=True)

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError("negative")

    return Record


Plain, Quick = record_class(lambda cls: cls), record_class(quick_init)


ARGUMENTS = st.fixed_dictionaries(
    {"first": st.integers(0, 9)},
    optional={"second": st.text(max_size=3), "items": st.lists(st.integers()), "last": st.floats(0, 1)},
)


@given(ARGUMENTS)
def test_fields_are_those_of_the_dataclass(arguments: dict[str, object]) -> None:
    plain, quick = Plain(**arguments), Quick(**arguments)
    names = ("first", "second", "items", "last")
    assert [getattr(quick, name) for name in names] == [getattr(plain, name) for name in names]
    assert repr(quick).partition("(")[2] == repr(plain).partition("(")[2]


def test_signature_docs_and_refusals_are_those_of_the_dataclass() -> None:
    assert inspect.signature(Quick) == inspect.signature(Plain)
    assert Quick(1, "x").second == "x", "positional where the dataclass is"
    wrong: list[Callable[[type], object]] = [
        lambda kind: kind(),
        lambda kind: kind(1, "x", [2]),
        lambda kind: kind(first=1, third=2),
    ]
    for call in wrong:
        for kind in (Plain, Quick):
            with pytest.raises(TypeError):
                call(kind)
    with pytest.raises(ValueError, match="negative"):
        Quick(-1)
    with pytest.raises(InvalidInput, match="reward must be a finite number"):
        Scored(value=float("nan"))


def test_records_stay_frozen_and_share_no_default() -> None:
    one, two = Quick(1), Quick(1)
    assert one == two
    assert one.items is not two.items
    with pytest.raises(FrozenInstanceError):
        one.first = 2
    cost = Cost(tokens_generated=3)
    assert replace(cost, env_steps=1) == Cost(tokens_generated=3, env_steps=1)
    assert copy.copy(cost) == copy.deepcopy(cost) == pickle.loads(pickle.dumps(cost)) == cost  # our own
    assert hash(cost) == hash(Cost(tokens_generated=3))


@given(ARGUMENTS)
def test_made_records_are_those_of_the_class(arguments: dict[str, object]) -> None:
    record = Plain(**arguments)
    made = quick_maker(Plain)(*(getattr(record, name) for name in ("first", "second", "items", "last")))
    assert made == record
    assert type(made) is Plain
    with pytest.raises(FrozenInstanceError):
        made.first = 2
    with pytest.raises(ValueError, match="negative"):
        quick_maker(Plain)(-1, "two", [], None)
