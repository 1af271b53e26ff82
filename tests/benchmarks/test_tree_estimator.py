"""The benchmark of tree estimators: what it knows of its task, that its estimators are unbiased, and its page."""

import numpy as np
import pytest

from benchmarks._tree_estimator_report import lines
from benchmarks._tree_task import MEAN, NUM_NOISY, NUM_TURNS, PLUS, TRUE_GRADIENT, grow, value, variance
from benchmarks.tree_estimator import NOISES, RULE, UNBIASED, arms, chosen_plan, measure
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


def test_page_has_a_line_for_every_row() -> None:
    figures = {"all": 1.2, "late": 30.0, "all_early10": 2.0, "late_early10": 3.0, "largest_z": 9.0, "cosine": 0.5}
    rows = {name: {str(c): figures for c in NOISES} for name in (*arms(), RULE)}
    plan = {"trees": 4, "turns": [2], "children": [2]}
    page = "".join(lines({"rows": rows, "groups": 800, "plans": {"c=1.5_early10": plan}}))
    assert all(f"| {name} | 1.20 (30), biased |" in page for name in rows)
    assert "| c = 1.5, early turns cost 10 | 4 | 2 | 2 |" in page
