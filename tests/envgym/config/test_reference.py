"""The keys of a settings model in words."""

import inspect
from collections.abc import Callable, Mapping
from typing import Literal

import pytest
from pydantic import Field

from envgym.config.plugins import Choice
from envgym.config.reference import SettingKey, read_argument, read_sections
from envgym.config.settings import Settings


class Inner(Settings):
    """A section.

    What follows its first paragraph is left out.
    """

    rate: float = Field(default=1e-5, gt=0, le=1)
    """How fast,
    in steps."""
    again: "Inner | None" = None


class Outer(Settings):
    """The file."""

    name: str = Field(pattern="^a")
    mode: Literal["slow", "fast"] = "slow"
    is_on: bool | None = None
    sizes: tuple[int, ...] = Field(default=(1, 2), min_length=1)
    method: Choice = Choice(name="grpo")
    methods: tuple[Choice, ...] = (Choice(name="a"), Choice.model_validate({"name": "b", "n": 1}))
    free: dict[str, int] = Field(default_factory=dict)
    inner: Inner = Inner()
    listed: tuple[Inner, ...] = ()
    named: Mapping[str, Inner] = Field(default_factory=dict)
    absent: Inner | None = None


SECTIONS = read_sections(Outer)
KEYS = {key.key: key for section in SECTIONS for key in section.keys}


@pytest.mark.parametrize(
    "key, kind, default, limits",
    [
        ("name", "text", "required", "matches `^a`"),
        ("mode", "slow or fast", "slow", ""),
        ("is_on", "true or false or null", "null", ""),
        ("sizes", "list of whole numbers", "[1, 2]", "1 or more entries"),
        ("method", "plug-in", "grpo", ""),
        ("methods", "list of plug-ins", "[a, {name: b, n: 1}]", ""),
        ("free", "mapping of whole numbers", "{}", ""),
        ("inner", "section", "", ""),
        ("listed", "list of sections", "[]", ""),
        ("named", "mapping of sections", "{}", ""),
        ("absent", "section or null", "null", ""),
        ("inner.rate", "number", "1e-05", "above 0, at most 1"),
    ],
)
def test_type_default_and_range_are_said_as_a_file_has_them(key: str, kind: str, default: str, limits: str) -> None:
    assert (KEYS[key].type, KEYS[key].default, KEYS[key].range) == (kind, default, limits)


def test_sections_are_read_wherever_they_stand_and_one_in_itself_once() -> None:
    assert [section.key for section in SECTIONS] == ["", "inner", "listed.0", "named.NAME", "absent"]
    assert [key.key for key in SECTIONS[2].keys] == ["listed.0.rate", "listed.0.again"]
    (section,) = read_sections(Inner, "top")
    assert [key.key for key in section.keys] == ["top.rate", "top.again"]


def test_texts_are_one_line_and_of_a_docstring_the_first_paragraph() -> None:
    assert SECTIONS[1].summary == "A section."
    assert KEYS["inner.rate"].description == "How fast, in steps."


def test_values_that_can_be_listed_are() -> None:
    assert KEYS["mode"].values == ("slow", "fast")
    assert KEYS["is_on"].values == ("true", "false")
    assert {name for name, key in KEYS.items() if key.is_choice} == {"method", "methods"}


def test_arguments_of_a_function_are_keys_too() -> None:
    def make(script: tuple[str, ...] | Callable[[], str], rate: float = 0.5, odd: object = None) -> None: ...

    first, second, third = (read_argument(item, "text") for item in inspect.signature(make).parameters.values())
    assert first == SettingKey(
        key="script",
        type="list of texts",
        default="required",
        range="",
        description="text",
        is_choice=False,
        values=(),
    )
    assert (second.type, second.default) == ("number", "0.5")
    assert (third.type, third.default) == ("any value", "null")
