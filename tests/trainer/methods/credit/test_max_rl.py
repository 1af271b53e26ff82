"""MaxRL: worked examples, and the objective whose gradient it estimates."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.trainer.methods.credit.max_rl import MaxRl
from tests.support.credit_trees import batch_advantages


def test_centred_rewards_over_their_mean() -> None:
    # mean 1/2: .5 / .5 = 1; mean 1/4: .75 / .25 = 3 and -.25 / .25 = -1
    assert batch_advantages(MaxRl(), [1, 0, 0, 1]) == pytest.approx([1, -1, -1, 1], abs=1e-5)
    assert batch_advantages(MaxRl(), [1, 0, 0, 0]) == pytest.approx([3, -1, -1, -1], abs=1e-4)


def test_group_without_a_success_has_advantage_zero() -> None:
    assert batch_advantages(MaxRl(), [0, 0, 0]) == [0.0, 0.0, 0.0]
    assert batch_advantages(MaxRl(), [-1, 0, -1]) == [0.0, 0.0, 0.0]


@given(st.floats(0.05, 0.95), st.integers(2, 6))
def test_expected_gradient_is_that_of_the_first_terms_of_log_p(p: float, n: int) -> None:
    """Summed over all draws of n episodes: d/dp of -Σ_{k<n} (1-p)^k / k is Σ_{k<n} (1-p)^{k-1}."""
    expected = 0.0
    for c in range(n + 1):
        advantages = batch_advantages(MaxRl(), [1.0] * c + [0.0] * (n - c))
        scores = [1 / p] * c + [-1 / (1 - p)] * (n - c)  # d log probability / dp
        gradient = math.fsum(a * s for a, s in zip(advantages, scores, strict=True)) / n
        expected += math.comb(n, c) * p**c * (1 - p) ** (n - c) * gradient
    assert expected == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, n)), rel=1e-4)
