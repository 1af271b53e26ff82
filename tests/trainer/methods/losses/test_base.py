"""What all policy losses share: masks, statistics, gradients, the table."""

from dataclasses import fields, replace
from math import exp, inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envgym.trainer.methods.losses import PolicyLoss
from envgym.trainer.methods.losses.base import LossBatch, LossStats, log_ratio, loss_stats
from envgym.trainer.methods.losses.ppo_clip import PpoClip
from envgym.trainer.methods.losses.reinforce import Reinforce
from tests.support.losses import stats_of
from tests.support.plugins import LOSSES

POLICY_LOSSES: list[PolicyLoss] = [
    PpoClip(),
    PpoClip(clip_low=0.1, clip_high=0.3),
    PpoClip(dual_clip=1.5),
    Reinforce(),
]
NAMES = ["ppo", "ppo-asymmetric", "ppo-dual", "reinforce"]
clipping_losses = pytest.mark.parametrize("loss", POLICY_LOSSES[:3], ids=NAMES[:3])
every_loss = pytest.mark.parametrize("loss", POLICY_LOSSES, ids=NAMES)


def _batch(seed: int, rows: int = 3, tokens: int = 4) -> LossBatch:
    """Draw a float64 batch whose ratios spread well beyond the clip range."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, tokens, dtype=torch.float64, generator=generator) - 0.1
    return LossBatch(
        logprobs_BT=old + 0.5 * torch.randn(rows, tokens, dtype=torch.float64, generator=generator),
        old_logprobs_BT=old,
        advantages_BT=torch.randn(rows, tokens, dtype=torch.float64, generator=generator),
        loss_mask_BT=torch.rand(rows, tokens, generator=generator) < 0.7,
    )


def _part(batch: LossBatch, rows: slice) -> LossBatch:
    return LossBatch(
        logprobs_BT=batch.logprobs_BT[rows],
        old_logprobs_BT=batch.old_logprobs_BT[rows],
        advantages_BT=batch.advantages_BT[rows],
        loss_mask_BT=batch.loss_mask_BT[rows],
    )


def _gradient(loss: PolicyLoss, batch: LossBatch) -> Tensor:
    logprobs = batch.logprobs_BT.clone().requires_grad_()
    loss(replace(batch, logprobs_BT=logprobs)).losses_BT.sum().backward()
    assert logprobs.grad is not None
    return logprobs.grad


@every_loss
@given(seed=st.integers(0, 10_000))
def test_the_gradient_equals_central_differences(loss: PolicyLoss, seed: int) -> None:
    batch, step = _batch(seed), 1e-6
    up = loss(replace(batch, logprobs_BT=batch.logprobs_BT + step)).losses_BT
    down = loss(replace(batch, logprobs_BT=batch.logprobs_BT - step)).losses_BT
    # Each loss depends on its own token only, so all tokens may be moved at once.
    torch.testing.assert_close(_gradient(loss, batch), (up - down) / (2 * step), rtol=1e-5, atol=1e-7)


@every_loss
@given(seed=st.integers(0, 10_000))
def test_a_masked_token_has_no_loss_and_no_gradient_and_may_be_nan(loss: PolicyLoss, seed: int) -> None:
    batch = _batch(seed)
    mask = batch.loss_mask_BT
    spoilt = replace(
        batch,
        logprobs_BT=batch.logprobs_BT.where(mask, torch.nan),
        old_logprobs_BT=batch.old_logprobs_BT.where(mask, torch.nan),
        advantages_BT=batch.advantages_BT.where(mask, torch.nan),
    )
    clean, dirty = loss(batch), loss(spoilt)
    assert bool((dirty.losses_BT[~mask] == 0).all())
    assert torch.equal(clean.losses_BT, dirty.losses_BT)
    assert torch.equal(_gradient(loss, batch), _gradient(loss, spoilt))
    assert bool((_gradient(loss, spoilt)[~mask] == 0).all())
    for field in fields(LossStats) if clean.stats else ():
        assert torch.equal(getattr(clean.stats, field.name), getattr(dirty.stats, field.name))


@clipping_losses
@given(seed=st.integers(0, 10_000), cut=st.integers(0, 3))
def test_statistics_of_micro_batches_add_up(loss: PolicyLoss, seed: int, cut: int) -> None:
    batch = _batch(seed)
    whole = stats_of(loss(batch))
    first, second = (stats_of(loss(_part(batch, part))) for part in (slice(None, cut), slice(cut, None)))
    for field in fields(LossStats):
        torch.testing.assert_close(getattr(first + second, field.name), getattr(whole, field.name))


@clipping_losses
def test_statistics_carry_no_gradient(loss: PolicyLoss) -> None:
    batch = _batch(0)
    stats = loss(replace(batch, logprobs_BT=batch.logprobs_BT.requires_grad_())).stats
    assert stats is not None
    assert not any(getattr(stats, field.name).requires_grad for field in fields(LossStats))


@every_loss
def test_on_policy_the_gradient_is_that_of_reinforce(loss: PolicyLoss) -> None:
    batch = _batch(1)
    batch = replace(batch, old_logprobs_BT=batch.logprobs_BT.clone())
    torch.testing.assert_close(_gradient(loss, batch), -batch.advantages_BT * batch.loss_mask_BT)


def test_statistics_of_a_hand_case() -> None:
    ratios = torch.tensor([[1.0, 2.0, 9.0], [0.5, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    stats = loss_stats(ratios.log(), mask, clipped_high_BT=ratios > 1.2)
    assert stats.tokens.item() == 3
    assert stats.ratio_sum.item() == pytest.approx(3.5)
    assert stats.ratio_min.item() == pytest.approx(0.5)
    assert stats.ratio_max.item() == pytest.approx(2.0)
    # (1 - 1 - 0) + (2 - 1 - ln 2) + (0.5 - 1 + ln 2)
    assert stats.kl_sum.item() == pytest.approx(0.5, abs=1e-6)
    assert (stats.clipped_low.item(), stats.clipped_high.item(), stats.clipped_dual.item()) == (0, 1, 0)


def test_statistics_of_nothing_are_the_identities() -> None:
    for shape in ((0, 3), (2, 0), (2, 3)):
        stats = loss_stats(torch.zeros(shape), torch.zeros(shape).bool())
        assert (stats.tokens.item(), stats.ratio_sum.item(), stats.kl_sum.item()) == (0, 0.0, 0.0)
        assert (stats.ratio_min.item(), stats.ratio_max.item()) == (inf, -inf)


def test_log_ratio_is_clamped_at_twenty_without_gradient_beyond() -> None:
    logprobs = torch.tensor([[-1.0, -1.0, -51.0]], requires_grad=True)
    old = torch.tensor([[-31.0, -2.0, -1.0]])
    ratio = log_ratio(logprobs, old, torch.ones(1, 3).bool())
    assert ratio.tolist() == [[20.0, 1.0, -20.0]]
    ratio.exp().sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, pytest.approx(exp(1)), 0.0]]


def test_the_table_builds_losses_from_settings() -> None:
    assert LOSSES["ppo_clip"](clip_high=0.28) == PpoClip(clip_high=0.28)
    assert LOSSES["reinforce"]() == Reinforce()
