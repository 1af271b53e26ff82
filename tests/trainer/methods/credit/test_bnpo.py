"""BNPO: a fit by hand, its reductions to Dr. GRPO and GRPO, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.config.plugins import Choice
from envgym.errors import InvalidInput, SettingsError
from envgym.trainer.methods.credit.bnpo import Bnpo, beta_parameters
from envgym.trainer.methods.credit.outcome import DrGrpo
from envgym.trainer.methods.protocols import CREDIT
from tests.support.credit_trees import batch_advantages

QUARTERS = ([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0])
"""Means 1/4, 1/2, 3/4: m = 1/2, v = 1/16, m(1-m)/v - 1 = 3, so a = b = 3/2 and alpha = beta = 3/2."""


def test_fit_and_density_by_hand() -> None:
    assert beta_parameters([0.25, 0.5, 0.75]) == pytest.approx((1.5, 1.5))
    # f(p; 3/2, 3/2) = 8/pi sqrt(p(1-p)): 1.102658 at 1/4, 1.273240 at 1/2; .75/1.102658, .25/1.102658, .5/1.273240
    found = batch_advantages(Bnpo(), *QUARTERS)
    assert found[:4] == pytest.approx([0.680175, -0.226725, -0.226725, -0.226725], abs=1e-6)
    assert found[4:8] == pytest.approx([0.392699, 0.392699, -0.392699, -0.392699], abs=1e-6)


def test_fit_of_means_that_lie_low_by_hand() -> None:
    # means 1/8, 3/8: m = 1/4, v = 1/32, m(1-m)/v - 1 = 5; a = 5/4 and b = 15/4; alpha = 1 + 5/12, beta = 1 + 5/4
    assert beta_parameters([0.125, 0.375]) == pytest.approx((17 / 12, 9 / 4))
    assert beta_parameters([0.875, 0.625]) == pytest.approx((9 / 4, 17 / 12))


def test_alpha_and_beta_of_three_halves_are_grpo_times_pi_over_eight() -> None:
    found = iter(batch_advantages(Bnpo(), *QUARTERS))
    for rewards in QUARTERS:
        p = sum(rewards) / 4
        for reward in rewards:
            assert next(found) == pytest.approx(math.pi / 8 * (reward - p) / math.sqrt(p * (1 - p)), rel=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_one_group_gets_dr_grpo(rewards: list[float]) -> None:
    assert batch_advantages(Bnpo(), rewards) == pytest.approx(batch_advantages(DrGrpo(), rewards), abs=1e-12)
    twice = batch_advantages(Bnpo(), rewards, rewards)
    assert twice == pytest.approx(batch_advantages(DrGrpo(), rewards, rewards), abs=1e-12)


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=5), min_size=1, max_size=5))
def test_each_group_sums_to_zero_and_stays_finite(batch: list[list[float]]) -> None:
    found = iter(batch_advantages(Bnpo(), *batch))
    for rewards in batch:
        of_group = [next(found) for _ in rewards]
        assert all(map(math.isfinite, of_group))
        assert math.fsum(of_group) == pytest.approx(0.0, abs=1e-6 * max(1.0, *map(abs, of_group)))


def test_parameters_are_at_least_one() -> None:
    # means of 0 and 1: m(1-m)/v - 1 = .25/.5 - 1 = -.5, so a = b = -1/4
    assert beta_parameters([0.0, 1.0]) == (1.0, 1.0)


def test_rewards_are_scaled_to_their_range_and_refused_outside() -> None:
    scaled = batch_advantages(Bnpo(low=-1, high=1), [1, -1, -1, -1], [1, 1, -1, -1], [1, 1, 1, -1])
    assert scaled == pytest.approx(batch_advantages(Bnpo(), *QUARTERS), abs=1e-12)
    with pytest.raises(InvalidInput, match=r"reward must lie in \[0, 1\], got 1\.5 \(bnpo, group group\); set credit"):
        batch_advantages(Bnpo(), [1.5, 0])
    with pytest.raises(SettingsError, match="high must lie above low"):
        CREDIT.build(Choice.model_validate({"name": "bnpo", "low": 1.0, "high": 1.0}))
