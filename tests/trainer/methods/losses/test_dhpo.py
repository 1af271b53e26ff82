"""DHPO: mixed ratios by hand."""

from math import exp

import pytest

from envgym.trainer.methods.losses import Dhpo
from tests.support.losses import batch_of, evaluate

BATCH = batch_of([[0.4, -0.1, 0.0]], 0.0, [-1.0])
"""Ratios e^.4, e^-.1 and 1, of which the row's is e^.1."""


@pytest.mark.parametrize(
    "weight, expected",
    [(0.5, [1.1002, 0.952619, 1.0002]), (1.0, [1.2, 0.904837, 1.0]), (0.0, [1.0004] * 3)],
)
def test_ratios_are_clipped_before_they_are_mixed(weight: float, expected: list[float]) -> None:
    losses = evaluate(Dhpo(token_weight=weight), BATCH)[2].losses_BT
    assert losses[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_gradient_of_each_part() -> None:
    """Means over three tokens; the row's part is clipped, then free: e^.1 for each token of the row."""
    assert evaluate(Dhpo(), BATCH)[1][0] == pytest.approx([0.0, exp(-0.1) / 6, 1 / 6])
    free = evaluate(Dhpo(sequence_clip_high=0.2), BATCH)[1][0]
    assert free == pytest.approx([exp(0.1) / 6, (exp(-0.1) + exp(0.1)) / 6, (1 + exp(0.1)) / 6])
