"""TOPR: weights of both signs and levels by hand."""

from math import exp

import pytest

from envgym.trainer.methods.losses import Reinforce, Topr
from tests.support.losses import batch_of, evaluate

# log-ratios .5, -.8 (sum -.3) and .5, .2 (sum .7)
NEW = [[-0.5, -1.8], [-0.5, -0.8]]


@pytest.mark.parametrize(
    "level, weights",
    [("sequence", [[exp(-0.3)] * 2, [1.0, 1.0]]), ("token", [[1.0, exp(-0.8)], [1.0, 1.0]])],
)
def test_wrong_samples_are_tapered(level: str, weights: list[list[float]]) -> None:
    loss = Topr.model_validate({"level": level})
    found = loss(batch_of(NEW, -1.0, [-2.0, -2.0])).losses_BT.tolist()
    expected = [[2 * w * value for w, value in zip(*pair, strict=True)] for pair in zip(weights, NEW, strict=True)]
    assert found == [pytest.approx(row) for row in expected]


def test_right_samples_are_imitated_whatever_their_ratio() -> None:
    batch = batch_of(NEW, -1.0, [2.0, 3.0])
    assert Topr()(batch).losses_BT.tolist() == Reinforce()(batch).losses_BT.tolist()


def test_ratio_of_a_row_leaves_masked_tokens_out() -> None:
    batch = batch_of([[-1.3, 9.0]], -1.0, [-1.0], [[1, 0]])
    assert evaluate(Topr(), batch)[1] == [[pytest.approx(exp(-0.3)), 0.0]]


def test_ratio_of_a_row_is_bounded_below() -> None:
    batch = batch_of([[-20.0, -20.0]], 0.0, [-1.0])
    assert evaluate(Topr(), batch)[1] == [[pytest.approx(exp(-20) / 2)] * 2]
