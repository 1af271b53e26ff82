"""The bound below which chance explains a mean reward."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.conformance.agents import call_text
from envgym.conformance.red_team import _contents, highest_mean


def test_bound_of_a_fair_coin_by_hand() -> None:
    # ln 1000 = 6.908 over 10 episodes is a budget of 0.6908 nats, and KL(1 || 0.5) = ln 2 = 0.6931 just exceeds it:
    # ten heads in a row refute a fair coin (0.5^10 = 0.00098 < 0.001), nine do not (0.5^9 = 0.00195).
    assert 0.99 < highest_mean(0.5, 10, 0.0, 1.0) < 1.0
    assert highest_mean(0.5, 9, 0.0, 1.0) == 1.0


def test_bound_solves_its_equation() -> None:
    mean = highest_mean(0.25, 40, 0.0, 1.0, num_tricks=3)
    divergence = mean * math.log(mean / 0.25) + (1 - mean) * math.log((1 - mean) / 0.75)
    assert 40 * divergence == pytest.approx(math.log(3000), rel=1e-9)


def test_chance_at_the_lower_end_allows_nothing() -> None:
    assert highest_mean(0.0, 20, 0.0, 1.0) == 0.0
    assert highest_mean(-1.0, 20, -1.0, 1.0) == -1.0


def test_chance_at_the_upper_end_allows_everything() -> None:
    assert highest_mean(1.0, 20, 0.0, 1.0) == 1.0
    assert highest_mean(0.0, 20, 0.0, 0.0) == 0.0, "a range of width 0"


@given(st.floats(0.01, 0.99), st.integers(1, 200), st.floats(-5, 5), st.floats(0.1, 9))
def test_bound_scales_with_the_reward_and_shrinks_with_the_number_of_episodes(
    chance: float, num_episodes: int, low: float, width: float
) -> None:
    unit = highest_mean(chance, num_episodes, 0.0, 1.0)
    assert chance <= unit <= 1.0
    assert highest_mean(low + width * chance, num_episodes, low, low + width) == pytest.approx(low + width * unit)
    assert highest_mean(chance, num_episodes + 1, 0.0, 1.0) <= unit + 1e-12
    assert highest_mean(chance, num_episodes, 0.0, 1.0, num_tricks=9) >= unit


def test_candidates_lose_their_marks() -> None:
    assert _contents("\\boxed{1}\n2\n\\boxed{3}") == "1 2 3"
    assert _contents(call_text("add", {"a": 1}).replace("\n", "")) == ""
