"""Tests of the bounds under invalid samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.stats import bound_invalid, estimate_success


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_hand_case() -> None:
    bounds = bound_invalid({"a": [1, None], "b": [0, 1], "c": [None, None]}, rng=rng())
    assert bounds.valid is not None
    # valid: a 1, b 1/2, c has none: 3/4; as failure (1/2 + 1/2 + 0)/3 = 1/3; as success (1 + 1/2 + 1)/3 = 5/6
    assert bounds.valid.value == 0.75
    assert bounds.as_failure.value == pytest.approx(1 / 3, abs=1e-12)
    assert bounds.as_success.value == pytest.approx(5 / 6, abs=1e-12)
    assert (bounds.valid.num_tasks, bounds.valid.num_samples) == (2, 3)
    assert (bounds.num_invalid, bounds.num_samples, bounds.invalid_rate) == (3, 6, 0.5)


def test_no_valid_sample_leaves_only_the_bounds() -> None:
    bounds = bound_invalid({"a": [None], "b": [None, None]}, rng=rng())
    assert bounds.valid is None
    assert (bounds.as_failure.value, bounds.as_success.value) == (0.0, 1.0)


def test_without_invalid_samples_all_three_are_the_estimate() -> None:
    samples = {"a": [1, 0], "b": [1, 1], "c": [0, 0]}
    bounds = bound_invalid(samples, rng=rng(), num_resamples=200)
    assert bounds.as_failure == estimate_success(samples, rng=rng(), num_resamples=200)
    assert bounds.valid is not None
    assert bounds.valid.value == bounds.as_failure.value == bounds.as_success.value == 0.5
    assert bounds.num_invalid == 0


VALUES = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=4)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=8))
def test_bounds_hold_the_estimate_over_valid_samples(samples: dict[str, list[float | None]]) -> None:
    bounds = bound_invalid(samples, rng=rng(), num_resamples=100)
    assert bounds.as_failure.value <= bounds.as_success.value
    if bounds.valid is not None:
        assert bounds.as_failure.value - 1e-12 <= bounds.valid.value <= bounds.as_success.value + 1e-12
