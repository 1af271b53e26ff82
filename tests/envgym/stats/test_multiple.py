"""Tests of Holm's correction."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.errors import InvalidInput
from envgym.stats import HolmStep, correct_by_holm


def by_closed_testing(p_values: list[float], alpha: float) -> list[bool]:
    """Reject what every subset that holds it rejects by Bonferroni: the principle that Holm's procedure abbreviates."""
    places = range(len(p_values))
    subsets = [s for size in range(1, len(p_values) + 1) for s in itertools.combinations(places, size)]
    return [all(min(p_values[j] for j in s) <= alpha / len(s) for s in subsets if place in s) for place in places]


def test_worked_example() -> None:
    # Sorted .01 .02 .03 .2: times 4, 3, 2, 1 = .04 .06 .06 .2; the first is tested at .05/4, the second at .05/3 and
    # fails, so that the rest stays there.
    steps = correct_by_holm([0.02, 0.2, 0.01, 0.03])
    assert [step.p_value for step in steps] == pytest.approx([0.06, 0.2, 0.04, 0.06])
    assert [step.level for step in steps] == pytest.approx([1 - 0.05 / 3] * 2 + [1 - 0.05 / 4, 1 - 0.05 / 3])


def test_one_comparison_stays_as_it_is() -> None:
    assert correct_by_holm([0.04]) == [HolmStep(0.04, 0.95)]
    assert correct_by_holm([]) == []
    with pytest.raises(InvalidInput, match=r"p-value must lie in \[0, 1\], got 1.5"):
        correct_by_holm([1.5])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.sampled_from([0.01, 0.05, 0.3]))
def test_rejects_what_closed_testing_rejects(p_values: list[float], alpha: float) -> None:
    steps = correct_by_holm(p_values, alpha=alpha)
    expected = by_closed_testing(p_values, alpha)
    for step, p_value, rejected in zip(steps, p_values, expected, strict=True):
        if all(abs(p_value * size - alpha) > 1e-12 for size in range(1, 6)):
            assert (step.p_value <= alpha) == rejected


def test_any_false_rejection_comes_in_at_most_five_of_a_hundred() -> None:
    rng = np.random.default_rng(0)
    rejected = [min(step.p_value for step in correct_by_holm(rng.random(4).tolist())) <= 0.05 for _ in range(4000)]
    assert 0.035 < np.mean(rejected) < 0.061  # 1 - (1 - 0.0125)^4 = 0.049, standard error 0.0034
