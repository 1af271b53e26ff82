"""Tests of the power calculations."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.errors import InvalidInput
from envgym.stats import minimum_detectable_effect, paired_variance, required_tasks, task_mean_variance

SHARES = st.floats(0.01, 0.99)


def test_hand_cases() -> None:
    # z_.975 + z_.8 = 1.959964 + 0.841621 = 2.801585; sqrt(0.25/100) = 0.05
    assert minimum_detectable_effect(100, 0.25) == pytest.approx(0.140079, abs=1e-6)
    # (2.801585 / 0.1)^2 * 0.25 = 196.2
    assert required_tasks(0.1, 0.25) == 197
    # 0.5 * 0.5 * (0.2 + 0.8/4) = 0.1
    assert task_mean_variance(0.5, 4, 0.2) == pytest.approx(0.1, abs=1e-15)
    # 0.1 + 0.1 - 2 * 0.75 * 0.1 = 0.05
    assert paired_variance(0.1, 0.1, 0.75) == pytest.approx(0.05, abs=1e-15)


@given(st.integers(1, 10_000), st.floats(1e-4, 4.0), st.floats(0.001, 0.2), st.floats(0.5, 0.99))
def test_required_tasks_inverts_minimum_detectable_effect(n: int, variance: float, alpha: float, power: float) -> None:
    effect = minimum_detectable_effect(n, variance, alpha=alpha, power=power)
    assert required_tasks(effect, variance, alpha=alpha, power=power) == n


@given(st.integers(1, 10_000), st.floats(1e-4, 4.0), st.floats(0.5, 0.99))
def test_the_minimum_detectable_effect_has_the_power_asked_for(num_tasks: int, variance: float, power: float) -> None:
    effect = minimum_detectable_effect(num_tasks, variance, power=power)
    # The mean's distance from the threshold at z_.975, in standard errors.
    margin = effect / math.sqrt(variance / num_tasks) - NormalDist().inv_cdf(0.975)
    assert NormalDist().cdf(margin) == pytest.approx(power, abs=1e-9)


@given(SHARES, st.integers(1, 64))
def test_more_samples_help_unless_a_task_is_all_or_nothing(success: float, num_samples: int) -> None:
    one = task_mean_variance(success, 1, 0.3)
    assert one == pytest.approx(success * (1 - success), rel=1e-12)
    assert task_mean_variance(success, num_samples, 1.0) == pytest.approx(one, rel=1e-12)
    assert task_mean_variance(success, num_samples, 0.0) == pytest.approx(one / num_samples, rel=1e-12)
    assert task_mean_variance(success, num_samples + 1, 0.3) < task_mean_variance(success, num_samples, 0.3)


def test_task_mean_variance_is_that_of_beta_binomial_tasks() -> None:
    # p_task ~ Beta(a, b) has mean a/(a+b) and correlation 1/(a+b+1): a = 1, b = 2: 1/3 and 1/4.
    # 40,000 tasks of 5 samples: 2/9 * (1/4 + 3/20) = 0.0889; the standard error of the variance is about 0.0006.
    generator = np.random.default_rng(2)
    means = generator.binomial(5, generator.beta(1, 2, size=40_000)) / 5
    assert float(means.var()) == pytest.approx(task_mean_variance(1 / 3, 5, 1 / 4), abs=0.0025)


def test_the_effect_is_found_as_often_as_promised() -> None:
    # 2,000 evaluations of 200 tasks whose difference has variance 0.3: found in 80 %, standard error 0.9 points.
    generator = np.random.default_rng(4)
    effect = minimum_detectable_effect(200, 0.3)
    means = effect + generator.standard_normal((2000, 200)).mean(axis=1) * math.sqrt(0.3)
    found = np.abs(means) > 1.959964 * math.sqrt(0.3 / 200)
    assert float(found.mean()) == pytest.approx(0.8, abs=0.036)


def test_no_variance_detects_anything() -> None:
    assert minimum_detectable_effect(10, 0.0) == 0.0
    assert required_tasks(0.1, 0.0) == 1
    assert paired_variance(0.1, 0.1, 1.0) == 0.0


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"success must lie in \[0, 1\], got 50"):
        task_mean_variance(50, 1, 0.0)
    with pytest.raises(InvalidInput, match="samples_per_task must be at least 1, got 0"):
        task_mean_variance(0.5, 0, 0.0)
    with pytest.raises(InvalidInput, match="num_tasks must be at least 1"):
        minimum_detectable_effect(0, 0.1)
    with pytest.raises(InvalidInput, match="variance must be finite"):
        minimum_detectable_effect(5, -0.1)
    with pytest.raises(InvalidInput, match=r"power must lie in \(0, 1\), got 1"):
        minimum_detectable_effect(5, 0.1, power=1)
    with pytest.raises(InvalidInput, match="effect must be above 0"):
        required_tasks(0.0, 0.1)
    with pytest.raises(InvalidInput, match="run_correlation must lie in"):
        paired_variance(0.1, 0.1, 1.5)
