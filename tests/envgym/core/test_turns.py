"""When a reward counts as a success."""

import pytest

from envgym.core.turns import Ending, Invalid, Scored, is_success, reaches, total


@pytest.mark.parametrize("parts", range(1, 201))
def test_equal_payments_of_one_in_all_are_a_success(parts: int) -> None:
    assert is_success(total(Scored(value=1 / parts) for _ in range(parts)), 1.0)


def test_payments_are_not_a_success_before_the_last() -> None:
    for parts in (6, 7, 10, 1000):
        assert not is_success(total(Scored(value=1 / parts) for _ in range(parts - 1)), 1.0)


def test_thresholds_are_met_from_below_within_rounding_only() -> None:
    assert reaches(1.0 - 1e-10, 1.0)
    assert not reaches(1.0 - 1e-8, 1.0)
    assert reaches(-0.5, -0.5)
    assert not reaches(0.49, 0.5)


def test_an_invalid_reward_is_no_success() -> None:
    assert not is_success(Invalid(cause=Ending.ERROR_ENV, reason="the server failed"), -1.0)
