"""Sentences: the house form, one mark at the end, near names."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.errors import RunError, UnknownName, check_known, near_names, sentence, suggestion, unknown_name

names = st.text(alphabet="abc-_/", min_size=1, max_size=8)


def test_sentence_has_the_house_form() -> None:
    said = sentence("max_turns", "be at least 1", 0, where="make", do="pass 1 or None")
    assert said == "max_turns must be at least 1, got 0 (make); pass 1 or None."


def test_long_value_is_shortened_and_its_length_told() -> None:
    said = sentence("x", "be short", "a" * 201, where="w", do="cut it")
    assert said == f"x must be short, got {'a' * 200}... (201 characters) (w); cut it."


def test_error_of_a_kind_says_its_sentence_where_its_rule_does_not_hold() -> None:
    told = "schema must be 1..2, got 3 (runs/a); read it with a newer envgym."
    rule = ("schema", "be 1..2", 3)
    assert str(RunError.of(*rule, where="runs/a", do="read it with a newer envgym")) == told
    RunError.unless(True, *rule, where="runs/a", do="read it with a newer envgym")
    with pytest.raises(RunError) as refusal:
        RunError.unless(False, *rule, where="runs/a", do="read it with a newer envgym")
    assert str(refusal.value) == told


def test_known_name_passes_and_an_unknown_one_is_refused_as_the_table_says() -> None:
    check_known("dtype", "float32", ["bfloat16", "float32"], where="load")
    with pytest.raises(UnknownName, match=r"dtype must be a known name, got 'float3'.*did you mean float32"):
        check_known("dtype", "float3", ["bfloat16", "float32"], where="load")


STDIO = ("games", "held_out", "levels", "partial", "rules", "source", "take")


@pytest.mark.parametrize(
    "name, known, remedy",
    [
        ("data", STDIO, f"choose one of: {', '.join(STDIO)}"),
        ("file", STDIO, f"choose one of: {', '.join(STDIO)}"),
        ("sorce", STDIO, "did you mean source?"),
        ("Levels", STDIO, "did you mean levels?"),
        (
            "zzz",
            [f"name{n:02}" for n in range(30)],
            f"choose one of: {', '.join(f'name{n:02}' for n in range(20))} ...",
        ),
        ("anything", [], ""),
    ],
)
def test_a_short_table_is_listed_unless_a_name_is_very_similar(name: str, known: Sequence[str], remedy: str) -> None:
    assert suggestion(name, known) == remedy


@given(st.text(alphabet="abc?. ", max_size=8), st.lists(names, max_size=4, unique=True))
def test_unknown_name_is_repeated_as_it_was_said_and_the_advice_ends_with_one_mark(name: str, known: list[str]) -> None:
    said = str(unknown_name("env", name, known, where="here"))
    told = f"env must be a known name, got {name!r} (here); "
    near = near_names(name, sorted(known), can_list=True)
    assert set(near) <= set(known)
    if near:
        assert said == f"{told}did you mean {' or '.join(near)}?"
    elif known:
        assert said == f"{told}choose one of: {', '.join(sorted(known))}."
    else:
        assert said == f"{told}no env is registered."
