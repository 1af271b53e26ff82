"""PPO's clipped loss: golden values, hand cases, limits."""

from math import exp, inf, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envgym.trainer.methods.losses import LossBatch, PpoClip, TokenLoss
from tests.support.losses import batch_of, evaluate, golden_batch, stats_of


def _at_ratio(loss: PpoClip, ratio: float, advantage: float) -> tuple[float, float, TokenLoss]:
    """Return the loss, its gradient by the log-probability, and the record, for one token at a ratio."""
    value, ((slope,),), result = evaluate(loss, batch_of([[log(ratio)]], 0.0, [advantage]))
    return value, slope, result


def test_golden_batch_with_dual_clip() -> None:
    loss, gradient, result = evaluate(PpoClip(clip_low=0.2, clip_high=0.28, dual_clip=3.0), golden_batch())
    assert loss == pytest.approx(-0.149229, abs=1e-6)
    expected = [[0.0, -0.163746, 0.0], [0.0, 0.110517, 0.0]]
    assert gradient == [pytest.approx(row, rel=0, abs=1e-6) for row in expected]
    # exp(.5) > 1.28 at A = 1; exp(-.4) and exp(-2) < .8 at A = -.5.
    assert (stats_of(result).clipped_high.item(), stats_of(result).clipped_low.item()) == (1, 2)


@pytest.mark.parametrize(
    "ratio, advantage, expected, gradient, clipped",
    [
        (1.1, 2.0, -2.2, -2.2, (0, 0, 0)),  # inside: -2 * 1.1
        (1.5, 2.0, -2.6, 0.0, (0, 1, 0)),  # above, A > 0: -2 * (1 + 0.3)
        (0.5, 2.0, -1.0, -1.0, (0, 0, 0)),  # below, A > 0: pessimism keeps -2 * 0.5
        (1.5, -2.0, 3.0, 3.0, (0, 0, 0)),  # above, A < 0: pessimism keeps 2 * 1.5
        (0.5, -2.0, 1.8, 0.0, (1, 0, 0)),  # below, A < 0: 2 * (1 - 0.1)
        (5.0, -2.0, 8.0, 0.0, (0, 0, 1)),  # above the dual clip, A < 0: 2 * 4
        (5.0, 2.0, -2.6, 0.0, (0, 1, 0)),  # the dual clip leaves A > 0 alone
        (5.0, 0.0, 0.0, 0.0, (0, 0, 0)),
        (4.0, -2.0, 8.0, 8.0, (0, 0, 0)),  # at the dual clip itself: it trains still
    ],
)
def test_each_side_of_the_clip(
    ratio: float, advantage: float, expected: float, gradient: float, clipped: tuple[int, int, int]
) -> None:
    loss, slope, result = _at_ratio(PpoClip(clip_low=0.1, clip_high=0.3, dual_clip=4.0), ratio, advantage)
    assert loss == pytest.approx(expected)
    assert slope == pytest.approx(gradient)
    stats = stats_of(result)
    assert (stats.clipped_low.item(), stats.clipped_high.item(), stats.clipped_dual.item()) == clipped


@given(seed=st.integers(0, 10_000))
def test_an_infinite_dual_clip_is_no_dual_clip(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logprobs, old, advantages = (3 * torch.randn(3, 5, generator=generator) for _ in range(3))
    batch = LossBatch(
        logprobs_BT=logprobs,
        old_logprobs_BT=old,
        advantages_BT=advantages * (advantages.abs() > 1),  # some exactly 0
        loss_mask_BT=torch.ones(3, 5).bool(),
    )
    assert torch.equal(PpoClip(dual_clip=inf)(batch).losses_BT, PpoClip()(batch).losses_BT)


def test_a_wide_clip_is_the_importance_weighted_objective() -> None:
    loss, slope, _ = _at_ratio(PpoClip(clip_low=1.0, clip_high=1e9), exp(3.0), 2.0)
    assert loss == pytest.approx(-2 * exp(3.0))
    assert slope == pytest.approx(-2 * exp(3.0))


def test_a_clip_of_zero_still_trains_on_policy() -> None:
    loss, slope, _ = _at_ratio(PpoClip(clip_low=0.0, clip_high=0.0), 1.0, 2.0)
    assert (loss, slope) == (-2.0, -2.0)


@pytest.mark.parametrize("settings", [{"clip_low": -0.1}, {"clip_low": 1.1}, {"clip_high": -0.1}, {"dual_clip": 1.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        PpoClip(**settings)
