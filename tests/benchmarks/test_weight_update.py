"""The benchmark of weight updates: what is counted, and that the new weights arrive."""

import argparse

import pytest

from benchmarks.weight_update import Update, measure, summary


def test_a_second_for_half_a_gigabyte_is_two_for_a_whole_one() -> None:
    found = summary([Update(3.0, 0.5), Update(1.0, 0.25), Update(1.0, 0.25)], 0.5)
    assert found["seconds_per_gb"] == 2.0
    assert found["phases"] == {"stage": 0.25, "load": 0.75}
    assert "phases" not in summary([Update(1.0, 0.0)], 0.5)


@pytest.mark.parametrize("way", ["shared", "copied"])
def test_a_policy_that_was_updated_has_the_learners_log_probs(way: str) -> None:
    options = argparse.Namespace(dtype="float32", repeats=1, threads=1, tolerance=1e-3)
    assert "seconds_per_gb" in measure("tiny", way, options)  # which compares the log-probs of a probe
