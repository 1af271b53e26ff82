"""The benchmark of tree estimators: what it knows of its task and that its estimators are unbiased."""

import numpy as np
import pytest

from benchmarks._tree_task import MEAN, NUM_NOISY, NUM_TURNS, PLUS, TRUE_GRADIENT, grow, value, variance
from benchmarks.tree_estimator import RULE, UNBIASED, arms, chosen_plan, measure
from envgym.seeds import generator


def test_known_gradient_and_variances_are_those_of_sampled_episodes() -> None:
    rng, c = generator("test"), 0.5
    totals = np.array([[choice.total for choice in grow(rng, c, {})] for _ in range(4000)])
    paid = totals[:, -1]
    # standard error of the mean: sqrt(S(0) / 4000) < 0.2; of the variance: sqrt(2 / 4000) < 0.03 of it
    assert paid.mean() == pytest.approx(value(0.0, 0), abs=0.7)
    assert paid.var() == pytest.approx(variance(c)[0], rel=0.1)
    left = paid - totals[:, NUM_NOISY - 1]
    assert left.var() == pytest.approx(variance(c)[NUM_NOISY], rel=0.1)
    assert left.mean() == pytest.approx(MEAN * (NUM_TURNS - NUM_NOISY), abs=0.2)
    # E[(x) (a - p)] of one choice x = 2 a - 1
    assert pytest.approx(2 * PLUS * (1 - PLUS)) == TRUE_GRADIENT


@pytest.mark.parametrize("name", [name for name in UNBIASED if name != RULE])
def test_unbiased_estimators_find_the_true_gradient(name: str) -> None:
    # 10 turns, 32 groups: Student's t of 31 degrees is beyond 6 once in 10^6
    assert measure(arms()[name], 0.0, 4, name)["largest_z"] < 6


def test_rule_branches_where_the_noise_ends() -> None:
    for early in (1.0, 10.0):
        assert chosen_plan(1.5, early).turns == (NUM_NOISY,)
