"""Schedules: worked values, and their ends."""

import pytest

from envgym.trainer.methods.schedules import Constant, Cosine, Linear


def test_a_constant_stays() -> None:
    assert [Constant(value=0.3)(step) for step in (0, 7)] == [0.3, 0.3]


def test_a_line_ends_at_its_end() -> None:
    assert [Linear(start=1.0, end=0.2, steps=4)(step) for step in (0, 1, 4, 9)] == pytest.approx([1.0, 0.8, 0.2, 0.2])


def test_a_cosine_rises_in_a_line_and_falls_to_its_valley() -> None:
    """The mixture coefficient of CHORD's example: warmup 200, decay 400, 0.5 to 0.02."""
    mixture = Cosine(peak=0.5, valley=0.02, warmup=200, decay=400)
    values = [mixture(step) for step in (0, 100, 200, 300, 400, 599, 600, 900)]
    assert values == pytest.approx([0, 0.25, 0.5, 0.429706, 0.26, 0.020007, 0.02, 0.02], abs=1e-6)


def test_published_cosine_of_prefix_rft() -> None:
    ratio = Cosine(peak=0.95, valley=0.05, decay=500)
    assert [ratio(step) for step in (0, 100, 250, 500)] == pytest.approx([0.95, 0.864058, 0.5, 0.05], abs=1e-6)
