"""Verdicts and keys: what cannot be a score, and what cannot be a key."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from envgym import Message, Role, Split, Task
from envgym.core.json_types import JsonObject, JsonValue
from envgym.errors import InvalidInput, UnknownName
from envgym.verifiers import (
    F1,
    Exact,
    GenerativeVerifier,
    JsonSchema,
    LlmJudge,
    Math,
    MultipleChoice,
    Noisy,
    Numeric,
    Pattern,
    Take,
    ToolCallMatch,
    Verdict,
    Verifier,
    right,
    wrong,
)
from envgym.verifiers.base import MAX_CANDIDATES, VERIFIER, judge_candidates
from envgym.verifiers.extract import Extracted


@dataclass(frozen=True)
class Strict:
    def reply(self, messages: Sequence[Message]) -> Message:
        return Message(role=Role.ASSISTANT, content="Score: 0")

    def sample(self, messages: Sequence[Message], *, seed: int) -> Message:
        return self.reply(messages)

    def compute_probabilities(self, messages: Sequence[Message], words: Sequence[str]) -> list[float]:
        return [float(word == "No") for word in words]


ALL: list[Verifier] = [
    Exact(),
    Numeric(),
    MultipleChoice(),
    F1(),
    Pattern(pattern="x+"),
    JsonSchema(),
    Math(),
    LlmJudge(judge=Strict()),
    GenerativeVerifier(judge=Strict()),
    Noisy(verifier=Exact(), false_positive=1.0),
    ToolCallMatch(),
]


def task(payload: JsonObject) -> Task:
    return Task(id="train/0", prompt="?", payload=payload, split=Split.TRAIN)


@pytest.mark.parametrize("score", [-0.01, 1.01, float("nan"), float("inf")])
def test_a_score_outside_the_unit_interval_is_refused(score: float) -> None:
    with pytest.raises(InvalidInput, match=r"score must lie in \[0, 1\]"):
        Verdict(score=score, reason="")


def test_the_table_names_every_verifier() -> None:
    assert {type(verifier) for verifier in ALL} == {VERIFIER.load(name) for name in VERIFIER.table}


@pytest.mark.parametrize("verifier", [v for v in ALL if not isinstance(v, Pattern)])
def test_a_missing_key_is_an_error_with_near_names_and_never_a_zero(verifier: Verifier) -> None:
    with pytest.raises(UnknownName, match="payload field must be a known name"):
        verifier("x", task({"answr": "x"}))


@pytest.mark.parametrize("verifier", [v for v in ALL if not isinstance(v, Pattern)])
def test_an_unusable_key_is_an_error_and_never_a_zero(verifier: Verifier) -> None:
    payload: JsonObject = {"answer": {}, "options": ["a", "b"], "schema": 3}
    with pytest.raises(InvalidInput, match="payload field"):
        verifier("x", task(payload))


@pytest.mark.parametrize("verifier", [Exact(), Exact(ignore_punctuation=True), F1()])
def test_a_blank_key_is_refused_and_beside_others_it_pays_no_answer_of_marks_alone(verifier: Verifier) -> None:
    blanks: list[JsonValue] = ["", " \n", ["", " "]]
    for blank in blanks:
        with pytest.raises(InvalidInput, match="must hold a text that is not blank"):
            verifier("x", task({"answer": blank}))
    for answer in ('" "', "** **", "$ $", "` `"):
        assert verifier(answer, task({"answer": ["", "Paris"]})).score == 0.0
    assert verifier("Paris", task({"answer": ["", "Paris"]})).score == 1.0


@pytest.mark.parametrize("verifier", ALL)
def test_verifiers_survive_pickling(verifier: Verifier) -> None:
    assert pickle.loads(pickle.dumps(verifier)) == verifier


def test_several_candidates_score_as_the_last_if_each_is_right_and_are_wrong_beyond_a_limit() -> None:
    judged: list[str] = []

    def judge(text: str) -> Verdict:
        judged.append(text)
        return right() if text.startswith("x") else wrong("no x")

    several = Extracted(candidates=("x", "y", "x2", "x2"), reason="there are 3 different answers")
    assert judge_candidates(several, judge, Take.ONLY) == wrong("there are 3 different answers")
    assert judge_candidates(several, judge, Take.LAST).score == 1.0
    assert judge_candidates(Extracted(candidates=("x", "x2")), judge, Take.ONLY).score == 1.0
    assert judge_candidates(Extracted(candidates=(), reason="none"), judge, Take.LAST) == wrong("none")
    judged.clear()
    many = Extracted(candidates=tuple(f"x{n}" for n in range(MAX_CANDIDATES + 1)), reason="there are many")
    assert judge_candidates(many, judge, Take.ONLY) == wrong("there are many")
    assert judged == []
