"""Laws of every loss, and the statistics of a loss by hand."""

from dataclasses import replace
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from envgym.trainer.methods.losses import LossBatch, PpoClip
from envgym.trainer.methods.losses.base import PolicyLoss, log_ratio, loss_stats, scope_of
from envgym.trainer.methods.losses.kl_reference import REFERENCE
from tests.support.plugins import LOSSES

PER_ROW = sorted(name for name, loss in LOSSES.items() if scope_of(loss()) == "row")


def batch_of(seed: int, loss: PolicyLoss) -> LossBatch:
    """Draw a batch that holds whatever a loss may read of one row at a time, and the scores that it asks for."""
    names = [REFERENCE, *(request.name for request in getattr(loss, "scores", ()))]
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return -torch.rand(3, 4, dtype=torch.float64, generator=generator) - 0.1

    return LossBatch(
        logprobs_BT=draw(),
        old_logprobs_BT=draw(),
        advantages_BT=draw() + 0.6,
        entropies_BT=-draw(),
        behavior_logprobs_BT=draw(),
        scores={name: draw() for name in names},
        loss_mask_BT=torch.rand(3, 4, generator=generator) < 0.6,
    )


def spoilt(batch: LossBatch) -> LossBatch:
    def spoil(values: Tensor | None) -> Tensor:
        assert values is not None
        return values.where(batch.loss_mask_BT, torch.nan)

    return replace(
        batch,
        logprobs_BT=spoil(batch.logprobs_BT),
        old_logprobs_BT=spoil(batch.old_logprobs_BT),
        advantages_BT=spoil(batch.advantages_BT),
        entropies_BT=spoil(batch.entropies_BT),
        behavior_logprobs_BT=spoil(batch.behavior_logprobs_BT),
        scores={name: spoil(values) for name, values in batch.scores.items()},
    )


def losses_and_gradient(loss: PolicyLoss, batch: LossBatch) -> tuple[Tensor, Tensor]:
    logprobs, entropies = batch.logprobs_BT.clone().requires_grad_(), batch.entropies.clone().requires_grad_()
    losses = loss(replace(batch, logprobs_BT=logprobs, entropies_BT=entropies)).losses_BT
    # A loss may leave the log-probs or the entropies alone.
    (losses.sum() + 0.0 * (logprobs.nan_to_num() + entropies.nan_to_num()).sum()).backward()
    assert logprobs.grad is not None
    assert entropies.grad is not None
    return losses.detach(), torch.stack([logprobs.grad, entropies.grad])


@pytest.mark.parametrize("name", PER_ROW)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10)
def test_a_masked_token_has_no_loss_and_no_gradient_and_may_be_nan(name: str, seed: int) -> None:
    loss = LOSSES[name]()
    batch = batch_of(seed, loss)
    (clean, of_clean), (dirty, of_dirty) = (losses_and_gradient(loss, x) for x in (batch, spoilt(batch)))
    assert torch.equal(clean, dirty)
    assert torch.equal(of_clean, of_dirty)
    assert bool((dirty[~batch.loss_mask_BT] == 0).all())
    assert bool((of_dirty[:, ~batch.loss_mask_BT] == 0).all())
    nothing = replace(batch, loss_mask_BT=torch.zeros(3, 4).bool())
    assert torch.equal(losses_and_gradient(loss, spoilt(nothing))[0], torch.zeros(3, 4, dtype=torch.float64))


RATIOS = torch.tensor([[2.0, 4.0, 9.0], [0.25, 1.0, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0], [1, 1, 0]]).bool()


def batch(ratios: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> LossBatch:
    old = torch.full_like(ratios, -3.0)
    return LossBatch(
        logprobs_BT=old + ratios.log(), old_logprobs_BT=old, advantages_BT=advantages, loss_mask_BT=mask
    )  # fmt: skip


def test_every_statistic_of_a_batch() -> None:
    clipped = torch.tensor([[True, False, True], [False, False, True]])
    stats = loss_stats(RATIOS.log(), MASK, clipped_low_BT=clipped, clipped_high_BT=~clipped, clipped_dual_BT=None)
    assert stats.tokens.item() == 4
    assert stats.ratio_sum.item() == pytest.approx(7.25)  # 2 + 4 + 1/4 + 1
    assert stats.ratio_min.item() == pytest.approx(0.25)
    assert stats.ratio_max.item() == pytest.approx(4.0)
    # k3 of KL(old || new) is ratio - 1 - ln ratio: 1 - ln 2, 3 - ln 4, -3/4 + ln 4 and 0
    assert stats.kl_sum.item() == pytest.approx(1 - log(2) + 3 - log(4) - 0.75 + log(4))
    assert (stats.clipped_low.item(), stats.clipped_high.item(), stats.clipped_dual.item()) == (1, 3, 0)


def test_log_ratios_are_clamped_on_both_sides_and_zero_under_the_mask() -> None:
    new, old = torch.tensor([[0.0, -50.0, -1.0, torch.nan]]), torch.tensor([[-50.0, 0.0, -3.0, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert log_ratio(new, old, mask).tolist() == [[20.0, -20.0, 2.0, 0.0]]


def test_clipped_tokens_are_counted_where_their_gradient_is_cut() -> None:
    # Ratios below and above the bounds 1/2 and 2 and the dual bound 4, once for each sign.
    ratios = torch.tensor([[0.25, 0.51, 1.0, 1.99, 3.0, 3.99, 8.0]], dtype=torch.float64)
    everywhere = torch.ones_like(ratios).bool()
    counted = []
    for sign in (1.0, -1.0, 0.0):
        given = batch(ratios, torch.full_like(ratios, sign), everywhere)
        given = replace(given, logprobs_BT=given.logprobs_BT.requires_grad_())
        loss = PpoClip(clip_low=0.5, clip_high=1.0, dual_clip=4.0)(given)
        loss.losses_BT.sum().backward()
        assert loss.stats is not None
        assert given.logprobs_BT.grad is not None
        stats = loss.stats
        counted.append([x.item() for x in (stats.clipped_low, stats.clipped_high, stats.clipped_dual)])
        without_gradient = (given.logprobs_BT.grad == 0).sum().item()
        assert without_gradient == (sum(counted[-1]) if sign else 7)
    assert counted == [[0, 3, 0], [1, 0, 1], [0, 0, 0]]
    # A ratio of exactly 1 is inside bounds that leave nothing else.
    ones = torch.ones(1, 2, dtype=torch.float64)
    stats_of_ones = PpoClip(clip_low=0.0, clip_high=0.0)(batch(ones, torch.tensor([[1.0, -1.0]]), ones.bool())).stats
    assert stats_of_ones is not None
    assert (stats_of_ones.clipped_low.item(), stats_of_ones.clipped_high.item()) == (0, 0)


def test_defaults_of_the_clip_are_those_of_ppo() -> None:
    assert PpoClip() == PpoClip(clip_low=0.2, clip_high=0.2, dual_clip=None)
    assert PpoClip(clip_low=1.0, clip_high=0.0, dual_clip=1.01).dual_clip == 1.01
    for wrong in ({"clip_low": 1.01}, {"clip_low": -0.1}, {"clip_high": -0.1}, {"dual_clip": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PpoClip.model_validate(wrong)
