"""DPPO: the published tokens, under both divergences, and its bounds one by one."""

from math import log

import pytest
import torch
from pydantic import ValidationError

from envgym.trainer.methods.losses import Cispo, DppoKl, DppoTv, LossBatch, PolicyLoss
from tests.support.losses import batch_of, evaluate, golden_batch, stats_of


def tokens(old: list[float], new: list[float], advantages: list[float]) -> LossBatch:
    return batch_of([[log(value) for value in new]], [[log(value) for value in old]], [advantages])


PUBLISHED = tokens([0.5, 0.5, 0.01, 0.01, 0.9], [0.7, 0.7, 0.2, 0.04, 0.95], [1.0, -1.0, 1.0, 1.0, -1.0])


@pytest.mark.parametrize("loss", [DppoTv(), DppoKl()], ids=["tv", "kl"])
def test_published_tokens(loss: PolicyLoss) -> None:
    """Shifts .2, .2, .19, .03, .05 and divergences .087, .087, .181, .017, .021: two are dropped."""
    result = loss(PUBLISHED)
    assert result.losses_BT[0].tolist() == pytest.approx([0.0, -0.499345, 0.0, 12.875503, -0.054143], abs=1e-6)
    assert (stats_of(result).clipped_high.item(), stats_of(result).clipped_low.item()) == (2, 0)
    assert result.sums["capped"].item() == 0


def test_cap_bounds_the_weight() -> None:
    result = DppoTv(cap=3.0)(PUBLISHED)
    assert result.losses_BT[0, 3].item() == pytest.approx(9.656627, abs=1e-6)  # 3 * log(25)
    assert result.sums["capped"].item() == 1


@pytest.mark.parametrize("loss", [DppoTv, DppoKl])
def test_golden_batch(loss: type[DppoTv | DppoKl]) -> None:
    value, gradient, _ = evaluate(loss(threshold_low=0.2, threshold_high=0.28, cap=3.0), golden_batch())
    assert value == pytest.approx(0.168057, abs=1e-6)
    assert gradient[1][2] == 0.0, "exp(-3) is far below exp(-1)"


def test_probabilities_that_fell_are_bounded_too() -> None:
    """.5 -> .3 at A = -1: a shift of -.2, and .5 log(.5/.3) + .5 log(.5/.7) = .087; at A = 1 nothing is dropped."""
    batch = tokens([0.5, 0.5], [0.3, 0.3], [-1.0, 1.0])
    for loss in (DppoTv(threshold_high=0.5), DppoKl(threshold_high=0.5)):
        result = loss(batch)
        assert result.losses_BT[0].tolist() == pytest.approx([0.0, -0.6 * log(0.3)])
        assert (stats_of(result).clipped_low.item(), stats_of(result).clipped_high.item()) == (1, 0)
    for loss in (DppoTv(threshold_low=0.21), DppoKl(threshold_low=0.09)):
        assert loss(batch).losses_BT[0, 0].item() == pytest.approx(0.6 * log(0.3))


def test_without_bounds_it_is_cispo() -> None:
    batch = golden_batch()
    expected = Cispo(clip_high=2.0)(batch).losses_BT
    for loss in (
        DppoTv(threshold_low=1.0, threshold_high=1.0, cap=3.0),
        DppoKl(threshold_low=99.0, threshold_high=99.0, cap=3.0),
    ):
        torch.testing.assert_close(loss(batch).losses_BT, expected)


def test_a_probability_of_one_is_finite() -> None:
    losses = DppoKl()(tokens([0.5, 1.0], [1.0, 1.0], [1.0, 1.0])).losses_BT
    assert losses.isfinite().all()


def test_thresholds_out_of_range_are_refused() -> None:
    for settings in ({"threshold_low": -0.1}, {"threshold_high": 1.1}, {"cap": 0.0}):
        with pytest.raises(ValidationError):
            DppoTv(**settings)
