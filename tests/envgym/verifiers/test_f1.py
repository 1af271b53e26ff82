"""F1: a case by hand, symmetry, bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.verifiers import F1, Take
from envgym.verifiers.extract import final
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
        ("the", "A", 0.0),  # what would leave nothing stays
        ("...", "+", 0.0),
        ("a.", "A", 1.0),
        ("the the", "The The!", 1.0),
        ("the", "The The", 2 / 3),  # 2 * 1 / (1 + 2)
        ("C#", "C", 0.0),
        ("35", "3.5", 0.0),
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
def test_normal_words_are_their_own_normal_words_and_no_text_is_nothing(text: str) -> None:
    once = words(text)
    assert bool(once) == bool(text.split())
    assert words(" ".join(once)) == once


def test_candidates_of_the_same_words_are_one_and_others_are_none() -> None:
    marked = F1(extract=final)
    task = Task(id="t", prompt="", payload={"answer": "Eiffel tower in Paris"}, split=Split.TRAIN)
    one, two = r"\boxed{Eiffel tower} <answer>the Eiffel Tower</answer>", r"\boxed{Eiffel tower} \boxed{the tower}"
    assert marked(one, task).score == pytest.approx(2 / 3)  # 2 * 2 / (2 + 4)
    assert marked(two, task).score == 0.0
    assert F1(extract=final, take=Take.LAST)(two, task).score == pytest.approx(0.4)  # 2 * 1 / (1 + 4)
