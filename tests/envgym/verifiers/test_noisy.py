"""Noise: how often scores are flipped, what decides it, and what stays as it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]  # SciPy has no stubs

from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput, UnknownName
from envgym.rubric import Criterion, Rubric
from envgym.verifiers import F1, Exact, Math, Noisy, Verifier

COUNT = 3000
ALWAYS = 1.0
RATES = [(0.0, 0.3), (0.1, 0.0), (0.05, 0.2), (0.5, 0.5), (1.0, 1.0)]


def task(number: int, answer: str = "yes") -> Task:
    return Task(id=f"train/{number}", prompt="?", payload={"number": number, "answer": answer}, split=Split.TRAIN)


def mean_score(verifier: Verifier, answer: str) -> float:
    return sum(verifier(answer, task(number)).score for number in range(COUNT)) / COUNT


@pytest.mark.parametrize(
    "false_positive, false_negative", [(0.0, 0.3), (0.1, 0.0), (0.05, 0.2), (0.5, 0.5), (1.0, 1.0)]
)
def test_mean_score_is_that_of_the_rates(false_positive: float, false_negative: float) -> None:
    noisy = Noisy(verifier=Exact(), false_positive=false_positive, false_negative=false_negative)
    for answer, expected in (("yes", 1 - false_negative), ("no", false_positive)):
        low, high = stats.binom.interval(1 - 1e-6, COUNT, expected)
        assert low <= COUNT * mean_score(noisy, answer) <= high


def test_flips_depend_on_seed_task_and_answer() -> None:
    def flips(seed: int, answers: list[str], tasks: range) -> list[float]:
        noisy = Noisy(verifier=Exact(), false_positive=0.5, seed=seed)
        return [noisy(answer, task(number)).score for answer in answers for number in tasks]

    by_task = flips(0, ["no"], range(64))
    assert by_task == flips(0, ["no"], range(64)), "the same answer is judged alike each time"
    by_answer = flips(0, [f"no {number}" for number in range(64)], range(1))
    assert {0.0, 1.0} == set(by_task) == set(by_answer)
    # two independent strings of 64 fair bits differ in 32 +- 4 places
    assert all(
        10 < sum(a != b for a, b in zip(by_task, other, strict=True)) < 54
        for other in (by_answer, flips(1, ["no"], range(64)))
    )


@given(st.lists(st.sampled_from("abcd"), max_size=5), st.integers(0, 3))
def test_partial_score_is_mirrored(words: list[str], seed: int) -> None:
    answer, asked = " ".join(words), task(0, "b c d")
    score = F1()(answer, asked).score
    assert Noisy(verifier=F1(), seed=seed)(answer, asked) == F1()(answer, asked), "without noise the verdict itself"
    flipped = Noisy(verifier=F1(), false_positive=ALWAYS, false_negative=ALWAYS, seed=seed)(answer, asked)
    assert flipped.score == pytest.approx(1 - score, abs=1e-12)
    assert flipped.reason.startswith("flipped by noise: ")


def test_answer_that_is_no_unicode_is_judged() -> None:
    assert Noisy(verifier=Exact(), false_positive=ALWAYS)("\ud800", task(0)).score == 1.0


def test_other_verifier_decides_what_may_wait_and_what_cannot_be_judged() -> None:
    assert [Noisy(verifier=Exact()).blocking, Noisy(verifier=Math()).blocking] == [False, True]
    with pytest.raises(UnknownName):
        Noisy(verifier=Exact(key="answr"), false_positive=ALWAYS)("x", task(0))
    with pytest.raises(InvalidInput, match=r"false_negative must lie in \[0, 1\], got 1.5 \(Noisy\)"):
        Noisy(verifier=Exact(), false_negative=1.5)


def test_rubric_pays_the_noisy_score_and_keeps_the_true_one() -> None:
    rubric = Rubric(
        [Criterion(Noisy(verifier=Exact(), false_negative=ALWAYS), 1.0, "answer"), Criterion(Exact(), 0.0, "true")]
    )
    paid = rubric("yes", task(0))
    assert (paid.value, paid.components) == (0.0, {"answer": 0.0, "true": 1.0})
