"""F1: a case by hand, symmetry, bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.verifiers import F1
from envgym.verifiers.f1 import token_f1, words


def score(answer: str, key: JsonValue) -> float:
    return F1()(answer, Task(id="t", prompt="", payload={"answer": key}, split=Split.TRAIN)).score


@pytest.mark.parametrize(
    "answer, key, expected",
    [
        ("the Eiffel Tower", "Eiffel tower!", 1.0),
        ("big red dog", "red dog", 0.8),  # P = 2/3, R = 2/2: 2 * (2/3) / (5/3) = 4/5
        ("red red", "red dog", 0.5),  # one word shared of two and two
        ("cat", ["dog", "a cat"], 1.0),
        ("", "dog", 0.0),
        ("paris rome oslo bern", "oslo", 0.4),  # all candidates at once: 2 * 1 / (4 + 1)
    ],
)
def test_f1_by_hand(answer: str, key: JsonValue, expected: float) -> None:
    assert score(answer, key) == pytest.approx(expected, abs=1e-12)


bags = st.lists(st.sampled_from("abcd"), max_size=6)


@given(bags, bags)
def test_f1_is_symmetric_bounded_and_one_only_for_equal_bags(left: list[str], right: list[str]) -> None:
    assert token_f1(left, right) == token_f1(right, left)
    assert 0.0 <= token_f1(left, right) <= 1.0
    assert (token_f1(left, right) == 1.0) == (sorted(left) == sorted(right))


@given(st.text())
def test_normal_words_are_their_own_normal_words(text: str) -> None:
    once = words(text)
    assert words(" ".join(once)) == [word for word in once if word not in ("a", "an", "the")]
