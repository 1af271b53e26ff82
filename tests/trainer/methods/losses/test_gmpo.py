"""GMPO: a geometric mean by hand, its clip, and rows of one token."""

from math import exp

import pytest

from envgym.trainer.methods.losses import Gmpo, SeqMeanTokenMean
from tests.support.losses import batch_of, evaluate, stats_of


def test_mean_of_clipped_ratios_by_hand() -> None:
    """A = 1 clips the .9 to .4, mean (.4 - .6 + .2) / 3 = 0; A = -2 clips the -1 to -.3, mean (-.3 + .7) / 2 = .2."""
    batch = batch_of([[0.9, -0.6, 0.2], [-1.0, 0.7, 5.0]], 0.0, [1.0, -2.0], [[1, 1, 1], [1, 1, 0]])
    value, gradient, result = evaluate(Gmpo(clip_low=0.3, clip_high=0.4), batch, SeqMeanTokenMean())
    assert value == pytest.approx((-1 + 2 * exp(0.2)) / 2)
    # the slope of a row's loss is its value over its tokens, but at a clipped one; the mean halves it
    assert gradient[0] == pytest.approx([0.0, -1 / 6, -1 / 6])
    assert gradient[1] == pytest.approx([0.0, 2 * exp(0.2) / 4, 0.0])
    assert (stats_of(result).clipped_low.item(), stats_of(result).clipped_high.item()) == (1, 1)


@pytest.mark.parametrize(
    "move, advantage, expected",
    [(0.3, 1.0, 0.3), (0.9, 1.0, 0.4), (-0.9, 1.0, -0.9), (-0.9, -1.0, -0.4), (0.9, -1.0, 0.9)],
)
def test_only_the_side_that_the_advantage_pushes_to_is_clipped(move: float, advantage: float, expected: float) -> None:
    value, (gradient,), _ = evaluate(Gmpo(), batch_of([[move]], 0.0, [advantage]))
    assert value == pytest.approx(-advantage * exp(expected))
    assert gradient == [pytest.approx(value if move == expected else 0.0)]


def test_on_policy_its_gradient_is_that_of_reinforce_per_sequence() -> None:
    batch = batch_of([[-1.0, -2.0], [-0.5, -3.0]], [[-1.0, -2.0], [-0.5, -3.0]], [2.0, -1.0])
    assert evaluate(Gmpo(), batch, SeqMeanTokenMean())[1] == [[-0.5, -0.5], [0.25, 0.25]]
