"""Exact: what is made equal, and what is not."""

import pytest

from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.verifiers import Exact
from envgym.verifiers.extract import Tagged


def score(verifier: Exact, answer: str, key: JsonValue) -> float:
    return verifier(answer, Task(id="t", prompt="", payload={"answer": key}, split=Split.TRAIN)).score


LOOSE = Exact(ignore_case=True, ignore_punctuation=True)


@pytest.mark.parametrize(
    "verifier, answer, key, expected",
    [
        (Exact(), " Paris\n", "Paris", 1.0),
        (Exact(), "New   York", "New York", 1.0),
        (Exact(ignore_space=False), "New   York", "New York", 0.0),
        (Exact(), "paris", "Paris", 0.0),
        (LOOSE, "PARIS!", "Paris", 1.0),
        (Exact(), "Cafe\u0301", "Caf\u00e9", 1.0),  # composed and decomposed accent
        (Exact(), "42", 42, 1.0),
        (Exact(), "b", ["a", "b"], 1.0),
        (Exact(), "a b", ["a", "b"], 0.0),
        (Exact(), "Paris Rome Oslo", "Paris", 0.0),
        (Exact(), "", "Paris", 0.0),
        (Exact(extract=Tagged()), "I say <answer>Paris</answer>", "Paris", 1.0),
        (Exact(extract=Tagged()), "Paris", "Paris", 0.0),
    ],
)
def test_exact_scores(verifier: Exact, answer: str, key: JsonValue, expected: float) -> None:
    assert score(verifier, answer, key) == expected
