"""Sentences: the house form, one mark at the end, near names."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.errors import near_names, sentence, unknown_name

names = st.text(alphabet="abc-_/", min_size=1, max_size=8)


def test_sentence_has_the_house_form() -> None:
    said = sentence("max_turns", "be at least 1", 0, where="make", do="pass 1 or None")
    assert said == "max_turns must be at least 1, got 0 (make); pass 1 or None."


def test_long_value_is_shortened_and_its_length_told() -> None:
    said = sentence("x", "be short", "a" * 201, where="w", do="cut it")
    assert said == f"x must be short, got {'a' * 200}... (201 characters) (w); cut it."


@given(st.text(alphabet="abc?. ", max_size=8), st.lists(names, max_size=4, unique=True))
def test_unknown_name_is_repeated_as_it_was_said_and_the_advice_ends_with_one_mark(name: str, known: list[str]) -> None:
    said = str(unknown_name("env", name, known, where="here"))
    told = f"env must be a known name, got {name!r} (here); "
    near = near_names(name, sorted(known))
    assert set(near) <= set(known)
    if near:
        assert said == f"{told}did you mean {' or '.join(near)}?"
    elif known:
        assert said == f"{told}choose one of: {', '.join(sorted(known))}."
    else:
        assert said == f"{told}no env is known here."
