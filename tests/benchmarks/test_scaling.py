"""The lines of the scaling benchmark."""

import numpy as np
import pytest

from benchmarks.scaling import Cost, fit, median_cost


def test_a_plane_is_found_again() -> None:
    places = [[1.0, 2.0], [2.0, 1.0], [3.0, 5.0], [0.5, 4.0]]
    values = [3 + 0.5 * x - 2 * y for x, y in places]
    np.testing.assert_allclose(fit(places, values), [3, 0.5, -2], atol=1e-12)


def test_noise_moves_the_slope_by_less_than_its_standard_error_allows() -> None:
    rng = np.random.default_rng(1)
    x = np.linspace(0, 10, 200)
    values = 1 + 2 * x + rng.normal(size=200)
    slope = fit([[one] for one in x], values.tolist())[1]
    assert slope == pytest.approx(2, abs=3 / np.sqrt(200 * x.var()))


def test_the_median_is_taken_of_each_figure() -> None:
    costs = [Cost(1, 5, 9, 2), Cost(1, 7, 3, 4), Cost(1, 6, 6, 30)]
    assert median_cost(costs) == Cost(1, 6, 6, 4)
