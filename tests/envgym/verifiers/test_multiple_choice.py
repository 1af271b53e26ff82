"""Choice: one option, in any clear way; never several."""

import pytest

from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput
from envgym.verifiers import MultipleChoice

OPTIONS: list[JsonValue] = ["Paris", "Rome", "Oslo", "Bern"]


def score(answer: str, key: str = "B") -> float:
    payload: JsonObject = {"answer": key, "options": OPTIONS}
    return MultipleChoice()(answer, Task(id="t", prompt="", payload=payload, split=Split.TRAIN)).score


@pytest.mark.parametrize(
    "answer",
    [
        "B", "(B)", "B.", "B) Rome", "**B**", "The answer is B.", r"\boxed{B}", r"\boxed{\text{B}}", "b", "(b)",
        "Rome", "rome.", "<answer>B</answer>", "Not C, I think.\n#### B", "Answer: B, since B is in Italy",
    ],
)  # fmt: skip
def test_the_right_option_scores_one(answer: str) -> None:
    assert score(answer) == 1.0
    assert score(answer, key="Rome") == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "C", "A or B", "A B C D", "A) Paris B) Rome C) Oslo D) Bern", "", "Rome or Oslo", "E", "none", "Bernard", "aB",
        "<answer>B</answer><answer>C</answer>", "BB", "\uff22", "A maybe, else B", "Which is B? Not A.", "B/C",
        "All but B", "Everything but (B)", "All of them except for B", "Anything but option B.",
    ],
)  # fmt: skip
def test_a_wrong_option_or_several_score_zero(answer: str) -> None:
    assert score(answer) == 0.0


def test_a_key_that_is_no_option_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="name one of the options A to D, got Madrid"):
        score("A", key="Madrid")
    payload: JsonObject = {"answer": "A", "options": ["only one"]}
    with pytest.raises(InvalidInput, match="be a list of 2 to 26 texts"):
        MultipleChoice()("A", Task(id="t", prompt="", payload=payload, split=Split.TRAIN))
