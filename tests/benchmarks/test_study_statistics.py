"""Statistics over seeds, by hand."""

import math

import pytest

from benchmarks._study_statistics import (
    area,
    compare,
    minimum_detectable_effect,
    pooled_intervals,
    pooled_spread,
    t_interval,
    t_quantile,
)


@pytest.mark.parametrize(
    "freedom, expected", [(1, 12.7062047), (2, 4.3026527), (7, 2.3646243), (8, 2.3060041), (30, 2.0422725)]
)
def test_quantiles_are_those_of_students_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=1e-7)


def test_interval_of_three_values_by_hand() -> None:
    # mean 2, standard deviation 1, t_{0.975, 2} = 4.3026527: half-width 4.3026527 / sqrt(3) = 2.4841377
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.0 - 2.4841377, 2.0 + 2.4841377), abs=1e-6)
    assert t_interval([0.5]) == (0.5, -math.inf, math.inf)


def test_minimum_detectable_effect_by_hand() -> None:
    # (t_{0.975, 7} + t_{0.8, 7}) / sqrt(8) = (2.3646243 + 0.8960296) / 2.8284271 = 1.1528152
    assert minimum_detectable_effect(0.1, 8) == pytest.approx(0.11528152, abs=1e-7)
    # (t_{.975, 30} + t_{.8, 30}) / sqrt(3) = (2.0422725 + 0.8537673) / 1.7320508
    assert minimum_detectable_effect(0.1, 3, freedom=30) == pytest.approx(0.1672028, abs=1e-6)


def test_intervals_take_one_spread_by_hand() -> None:
    # variances 0.5 and 2 within the pairs, whatever their means
    assert pooled_spread([[0.0, 1.0], [7.0, 9.0]]) == pytest.approx(math.sqrt(1.25))
    # t_{.975, 2} = 4.3026527: half-width 4.3026527 * 1.1180340 / sqrt(2)
    intervals = pooled_intervals({"a": [0.0, 1.0], "b": [7.0, 9.0]})
    assert intervals["a"] == pytest.approx((0.5, 0.5 - 3.4015457, 0.5 + 3.4015457), abs=1e-6)
    assert intervals["b"] == pytest.approx((8.0, 8.0 - 3.4015457, 8.0 + 3.4015457), abs=1e-6)


@pytest.mark.parametrize(
    "points, expected",
    [
        ([(0.0, 0.5), (100.0, 0.5)], 0.5),
        ([(0.0, 0.0), (100.0, 1.0)], 0.5),
        ([(0.0, 0.0), (50.0, 1.0), (100.0, 1.0)], 0.75),  # 1/4 + 1/2
        ([(0.0, 0.0), (50.0, 1.0), (150.0, 0.0)], 0.625),  # 1/4 + (1 + 1/2) / 2 / 2: cut at half of the last piece
        ([(0.0, 0.0), (100.0, 1.0), (200.0, 1.0)], 0.5),  # what is beyond the budget does not count
    ],
)
def test_area_by_hand(points: list[tuple[float, float]], expected: float) -> None:
    assert area(points, 100.0) == pytest.approx(expected)


def test_paired_comparison_by_hand() -> None:
    # mean 2, s = 1, t = 2 sqrt(3) = 3.4641; with 2 degrees of freedom p = 1 - t / sqrt(2 + t^2) = 0.0741799
    comparison = compare([1.0, 2.0, 3.0])
    assert comparison.mean == t_interval([1.0, 2.0, 3.0])
    assert comparison.p_value == pytest.approx(0.0741799, abs=1e-7)
    assert (compare([0.0, 0.0]).p_value, compare([0.5, 0.5]).p_value) == (1.0, 0.0)
