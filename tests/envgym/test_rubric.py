"""Rubrics: weights, gates, components, and faults that are raised."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput, UnknownName
from envgym.rubric import Criterion, Rubric, rubric_of
from envgym.verifiers import F1, Exact, Math, Pattern, Verdict

TASK = Task(id="t", prompt="", payload={"answer": "red dog"}, split=Split.TRAIN)


def giving(score: float) -> "Fixed":
    return Fixed(score)


class Fixed:
    def __init__(self, score: float) -> None:
        self.score = score

    def __call__(self, answer: str, task: Task) -> Verdict:
        return Verdict(score=self.score, reason="fixed")


def test_the_value_is_the_weighted_mean_and_components_are_the_raw_scores() -> None:
    rubric = Rubric([(Exact(), 3.0, "exact"), (F1(), 1.0, "words"), (Pattern(pattern="x"), 0.0, "form")])
    reward = rubric("big red dog", TASK)
    assert reward.value == pytest.approx(0.2, abs=1e-12)  # (3 * 0 + 1 * 0.8 + 0 * 0) / 4
    assert dict(reward.components) == {"exact": 0.0, "words": pytest.approx(0.8), "form": 0.0}
    assert rubric("red dog", TASK).value == 1.0


def test_a_closed_gate_makes_the_whole_reward_zero_and_keeps_the_components() -> None:
    form = Criterion(Pattern(pattern="[a-z ]+"), 0.0, "form", is_gate=True)
    rubric = Rubric([form, (F1(), 1.0, "words")])
    assert rubric("red dog", TASK).value == 1.0
    closed = rubric("RED DOG", TASK)
    assert (closed.value, dict(closed.components)) == (0.0, {"form": 0.0, "words": 1.0})


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 100)), min_size=1, max_size=5), st.floats(0.01, 100))
def test_scaled_weights_change_nothing_and_the_value_is_between(
    lines: list[tuple[float, float]], factor: float
) -> None:
    def value(scale: float) -> float:
        return Rubric([(giving(s), w * scale, str(i)) for i, (s, w) in enumerate(lines)])("", TASK).value

    assert value(factor) == pytest.approx(value(1.0), abs=1e-9)
    scores = [score for score, _ in lines]
    assert min(scores) - 1e-12 <= value(1.0) <= max(scores) + 1e-12


def test_a_fault_of_a_verifier_is_raised() -> None:
    with pytest.raises(UnknownName):
        Rubric([(Exact(key="anser"), 1.0, "exact")])("red dog", TASK)


@pytest.mark.parametrize("weights", [[], [0.0], [-1.0, 2.0], [float("inf")], [float("nan")]])
def test_weights_that_make_no_mean_are_refused(weights: list[float]) -> None:
    with pytest.raises(InvalidInput, match="weights must be at least 0, one of them positive"):
        Rubric([(Exact(), weight, str(index)) for index, weight in enumerate(weights)])


def test_a_name_used_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="criteria must have different names"):
        Rubric([(Exact(), 1.0, "a"), (F1(), 1.0, "a")])


def test_a_rubric_waits_where_a_verifier_does() -> None:
    assert not rubric_of(Exact()).blocking
    assert rubric_of(Math()).blocking


def test_rubrics_survive_pickling() -> None:
    rubric = Rubric([(Exact(), 3.0, "exact"), (F1(), 1.0, "words")])
    assert pickle.loads(pickle.dumps(rubric))("big red dog", TASK) == rubric("big red dog", TASK)
