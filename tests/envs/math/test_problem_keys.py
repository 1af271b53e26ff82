"""Keys of the usual data sets: each is right as its own answer, in every usual form, and nothing else is."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from envgym.core.tasks import Split, Task
from envgym.envs.math._judging import WorkedOut
from envgym.errors import InvalidInput
from envgym.verifiers.math import Math

KEYS: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("problem_keys.toml").read_text("utf-8"))["keys"]
GRADE = WorkedOut(math=Math(worked_out=True))


def score(answer: str, key: str, prompt: str = "What is it?") -> float:
    return GRADE(f"\\boxed{{{answer}}}", Task(id="t", prompt=prompt, payload={"answer": key}, split=Split.TRAIN)).score


@pytest.mark.parametrize("row", KEYS, ids=[row["key"] for row in KEYS])
def test_a_key_is_right_in_every_form_and_nothing_else_is(row: dict[str, Any]) -> None:
    answers = dict.fromkeys((row["key"], *row["right"]), 1.0) | dict.fromkeys(row["wrong"], 0.0)
    assert {answer: score(answer, row["key"]) for answer in answers} == answers


def test_there_are_keys_of_every_usual_form() -> None:
    assert len(KEYS) >= 88
    assert len({row["key"] for row in KEYS}) == len(KEYS)
    assert sum(len(row["right"]) + len(row["wrong"]) for row in KEYS) >= 600


@pytest.mark.parametrize("key", ["n \\equiv 1 \\pmod 4", "A \\cup B", "\\int \\int", "", "$3$ or $4$", "\\frac{1}{0}"])
@pytest.mark.parametrize("answer", ["", "7", "\\boxed{7}", "hello", "\\boxed{\\frac{"])
def test_an_unreadable_key_is_refused_for_every_answer(key: str, answer: str) -> None:
    task = Task(id="t", prompt="", payload={"answer": key}, split=Split.TRAIN)
    for grade in (GRADE, Math()):
        for text in (answer, f"\\boxed{{{key}}}"):
            with pytest.raises(
                InvalidInput, match=r"payload field 'answer' must (?:be|hold a text that is not blank)\b"
            ):
                grade(text, task)
        with pytest.raises(InvalidInput, match=r"payload field 'answer' must (?:be|hold a text that is not blank)\b"):
            grade.check_key(task)


QUESTIONS = [
    ("Factor $9y^2-30y+25$.", "(3y-5)^2", ("9y^2-30y+25", "9y^2 - 30y + 25", "25-30y+9y^2", "9\\cdot y^2-30y+25")),
    ("Factor 9y^2 - 30y + 25.", "(3y-5)^2", ("9y^2-30y+25", "9y^2 - 30y + 25")),
    ("Expand $(x+3)(x-6)$.", "x^2-3x-18", ("(x+3)(x-6)", "(x-6)(x+3)", "(3+x)(x-6)")),
    ("Simplify \\((2x^5)^3\\).", "8x^{15}", ("(2x^5)^3",)),
    ("Simplify $\\frac{x^2-1}{x-1}$.", "x+1", ("\\frac{x^2-1}{x-1}", "\\dfrac{x^2-1}{x-1}", "(x^2-1)/(x-1)")),
    ("Simplify $$x^2 \\cdot x^3$$", "x^5", ("x^2 \\cdot x^3", "x^3 x^2")),
    ("Write $\\ln 2+\\ln 3$ as a single logarithm.", "\\ln 6", ("\\ln 2+\\ln 3", "\\ln 3 + \\ln 2")),
    ("Simplify $\\sqrt{12}$.", "2\\sqrt{3}", ("\\sqrt{12}",)),
    ("Reduce $\\frac{6}{8}$ to lowest terms.", "\\frac{3}{4}", ("\\frac{6}{8}",)),
]


@pytest.mark.parametrize("question, key, echoes", QUESTIONS)
def test_the_question_said_again_is_no_answer(question: str, key: str, echoes: tuple[str, ...]) -> None:
    assert {echo: score(echo, key, question) for echo in echoes} == dict.fromkeys(echoes, 0.0)
    assert {echo: score(echo, key) for echo in echoes} == dict.fromkeys(echoes, 1.0), "equal, were it not the question"
    assert score(key, key, question) == 1.0


@pytest.mark.parametrize(
    "question, key, answer",
    [
        ("Which is larger, 0.75 or 0.7?", "\\frac{3}{4}", "0.75"),
        ("Find $f'(x)$ for $f(x) = e^x$.", "e^x", "e^x"),
        ("Find $y$ where $y = 2x+1$.", "2x+1", "1+2x"),
        (
            "As $\\sin 60^\\circ = \\frac{\\sqrt3}{2}$, what is $\\cos 30^\\circ$?",
            "\\frac12\\sqrt{3}",
            "\\frac{\\sqrt3}{2}",
        ),
        ("Which of $(1,2)$ and $(2,1)$ lies on $y=2x$?", "(1, 2.0)", "(1,2)"),
        ("Simplify $x+x$, where $x$ is real.", "2x", "2x"),
    ],
)
def test_what_stands_in_a_question_may_be_its_answer(question: str, key: str, answer: str) -> None:
    assert score(answer, key, question) == 1.0


def test_a_numeral_without_its_base_counts_where_the_question_names_the_base() -> None:
    assert [score("52", "52_8", f"Write 42 in {name}.") for name in ("base 8", "base eight", "octal", "base 9")] == [
        1.0, 1.0, 1.0, 0.0,
    ]  # fmt: skip
    assert score("52_8", "52", "Write 42 in base $8$.") == 1.0
    assert (score("52_8", "52"), score("52", "52_8")) == (0.0, 0.0)
