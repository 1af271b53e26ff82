"""CISPO: published vectors, and what is left of it without a bound."""

from math import log

import pytest
import torch

from envgym.trainer.methods.losses import Cispo, PpoClip, Reinforce
from tests.support.losses import batch_of, evaluate, golden_batch, gradient_of


def test_golden_batch() -> None:
    value, gradient, result = evaluate(Cispo(clip_low=0.2, clip_high=0.28), golden_batch())
    assert value == pytest.approx(-0.12697, abs=1e-6)
    expected = [[-0.256, -0.163746, 0.0], [0.08, 0.110517, 0.08]]
    assert gradient == [pytest.approx(row, abs=1e-6) for row in expected]
    # exp(.5) > 1.28, exp(-.4) and exp(-2) < .8
    assert result.sums["capped"].item() == 3


@pytest.mark.parametrize("cap, last", [(4.0, 0.4), (5.0, 0.5)])
def test_scale_rl_bounds_the_weight_from_above_alone(cap: float, last: float) -> None:
    logprobs, ratios = [-1.0, -2.0, -0.5, -0.1], [0.01, 0.5, 3.0, 8.0]
    old = [value - log(ratio) for value, ratio in zip(logprobs, ratios, strict=True)]
    result = Cispo(clip_high=cap - 1)(batch_of([logprobs], [old], [1.0]))
    assert result.losses_BT[0].tolist() == pytest.approx([0.01, 1.0, 1.5, last])
    assert result.sums["capped"].item() == 1


def test_without_a_bound_it_is_the_importance_weighted_policy_gradient() -> None:
    batch = golden_batch()
    unbounded = PpoClip(clip_low=1.0, clip_high=1e9)  # -A π/π_old, whose gradient is that of -A π/π_old log π
    torch.testing.assert_close(gradient_of(Cispo(clip_high=1e9), batch), gradient_of(unbounded, batch))


def test_with_a_weight_bound_to_one_it_is_reinforce() -> None:
    batch = golden_batch()
    assert torch.equal(Cispo(clip_low=0.0, clip_high=0.0)(batch).losses_BT, Reinforce()(batch).losses_BT)
