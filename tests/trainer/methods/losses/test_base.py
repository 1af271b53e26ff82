"""What all policy losses share: masks, statistics, gradients, the table."""

from dataclasses import fields, replace
from math import exp, inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envgym.errors import InvalidInput
from envgym.trainer.methods.losses import (
    Cispo,
    ClipCov,
    Dhpo,
    DppoKl,
    DppoTv,
    Dro,
    Gmpo,
    Gspo,
    KlCov,
    PolicyLoss,
    PpoClip,
    Real,
    Reinforce,
    Sapo,
    Topr,
)
from envgym.trainer.methods.losses.base import LossBatch, LossStats, log_ratio, loss_stats, scope_of
from envgym.trainer.methods.row_ids import RowId, RowIds
from tests.support.differences import central_difference, partial_differences
from tests.support.losses import gradient_of, row_of_turns, stats_of
from tests.support.plugins import LOSSES

OWN: dict[str, PolicyLoss] = {
    "ppo": PpoClip(),
    "ppo-asymmetric": PpoClip(clip_low=0.1, clip_high=0.3),
    "ppo-dual": PpoClip(dual_clip=1.5),
    "sapo": Sapo(tau_negative=2.0),
    "dro": Dro(beta=0.3),
    "clip-cov": ClipCov(share=0.3, low=-1.0, clip_high=0.2),
    "kl-cov": KlCov(share=0.3, coef=0.5),
}
"""The loss of a token is a function of its own log-prob, but for what the others choose."""
WEIGHED: dict[str, PolicyLoss] = {
    "reinforce": Reinforce(),
    "cispo": Cispo(clip_low=0.2, clip_high=0.3),
    "dppo-tv": DppoTv(threshold_high=0.1, cap=1.5),
    "dppo-kl": DppoKl(threshold_low=0.02),
    "topr": Topr(),
    "topr-token": Topr(level="token"),
}
"""A token's log-prob times a weight that carries no gradient."""
COUPLED: dict[str, PolicyLoss] = {
    "gspo": Gspo(clip_low=0.1, clip_high=0.2),
    "gspo-turn": Gspo(level="turn", clip_low=0.1, clip_high=0.2),
    "gspo-token": Gspo(level="token", clip_low=0.1, clip_high=0.2),
    "gmpo": Gmpo(),
    "dhpo": Dhpo(sequence_clip_low=0.1, sequence_clip_high=0.2),
    "real": Real(),
    "real-bce": Real(form="bce"),
}
"""The loss of a token is a function of several log-probs."""
EVERY = OWN | WEIGHED | COUPLED
CLIPPING = [name for name, loss in EVERY.items() if name.startswith(("ppo", "dppo", "gspo", "gmpo"))]


def of(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("loss", [EVERY[name] for name in names], ids=names)


def _batch(seed: int, rows: int = 3, tokens: int = 4) -> LossBatch:
    """Draw a float64 batch whose ratios spread well beyond the clip range; rows are of one group, and of two turns."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, tokens, dtype=torch.float64, generator=generator) - 0.1
    row = row_of_turns([0, 0, 1, 1])
    ids = [RowId(episode=n, reward=float(n != 1), row=row) for n in range(rows)]
    return LossBatch(
        logprobs_BT=old + 0.5 * torch.randn(rows, tokens, dtype=torch.float64, generator=generator),
        old_logprobs_BT=old,
        advantages_BT=torch.randn(rows, tokens, dtype=torch.float64, generator=generator),
        loss_mask_BT=torch.rand(rows, tokens, generator=generator) < 0.7,
        ids=RowIds(ids=ids, length=tokens),
    )


def _part(batch: LossBatch, rows: slice) -> LossBatch:
    return LossBatch(
        logprobs_BT=batch.logprobs_BT[rows],
        old_logprobs_BT=batch.old_logprobs_BT[rows],
        advantages_BT=batch.advantages_BT[rows],
        loss_mask_BT=batch.loss_mask_BT[rows],
        ids=replace(batch.ids, ids=batch.ids.ids[rows]),
    )


@of(list(OWN))
@given(seed=st.integers(0, 10_000))
def test_the_gradient_equals_central_differences(loss: PolicyLoss, seed: int) -> None:
    batch = _batch(seed)
    # Each loss depends on its own token only, so all tokens may be moved at once.
    slopes = central_difference(lambda by: loss(replace(batch, logprobs_BT=batch.logprobs_BT + by)).losses_BT)
    torch.testing.assert_close(gradient_of(loss, batch), slopes, rtol=1e-5, atol=1e-7)


@of(list(WEIGHED))
@given(seed=st.integers(0, 10_000))
def test_gradient_of_a_weighed_log_prob_equals_differences_that_leave_the_weight(loss: PolicyLoss, seed: int) -> None:
    batch = _batch(seed)

    def moved(by: float) -> Tensor:
        # The old log-probs move along, so that no ratio, and with it no weight, changes.
        logprobs_BT, old_logprobs_BT = batch.logprobs_BT + by, batch.old_logprobs_BT + by
        return loss(replace(batch, logprobs_BT=logprobs_BT, old_logprobs_BT=old_logprobs_BT)).losses_BT

    torch.testing.assert_close(gradient_of(loss, batch), central_difference(moved), rtol=1e-5, atol=1e-7)


@of(list(COUPLED))
@given(seed=st.integers(0, 10_000))
def test_the_gradient_of_coupled_tokens_equals_central_differences_token_by_token(loss: PolicyLoss, seed: int) -> None:
    batch = _batch(seed)
    batch = replace(batch, advantages_BT=batch.advantages_BT[:, :1].expand(3, 4))
    expected = partial_differences(
        lambda moved_BT: loss(replace(batch, logprobs_BT=moved_BT)).losses_BT.sum(), batch.logprobs_BT
    )
    torch.testing.assert_close(gradient_of(loss, batch), expected, rtol=1e-5, atol=1e-7)


@of(list(EVERY))
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
    assert torch.equal(gradient_of(loss, batch), gradient_of(loss, spoilt))
    assert bool((gradient_of(loss, spoilt)[~mask] == 0).all())
    for field in fields(LossStats) if clean.stats else ():
        assert torch.equal(getattr(clean.stats, field.name), getattr(dirty.stats, field.name))


@of(CLIPPING)
@given(seed=st.integers(0, 10_000), cut=st.integers(0, 3))
def test_statistics_of_micro_batches_add_up(loss: PolicyLoss, seed: int, cut: int) -> None:
    batch = _batch(seed)
    whole = stats_of(loss(batch))
    first, second = (stats_of(loss(_part(batch, part))) for part in (slice(None, cut), slice(cut, None)))
    for field in fields(LossStats):
        torch.testing.assert_close(getattr(first + second, field.name), getattr(whole, field.name))


@of(CLIPPING)
def test_statistics_carry_nogradient_of(loss: PolicyLoss) -> None:
    batch = _batch(0)
    stats = loss(replace(batch, logprobs_BT=batch.logprobs_BT.requires_grad_())).stats
    assert stats is not None
    assert not any(getattr(stats, field.name).requires_grad for field in fields(LossStats))


@of([name for name in EVERY if name not in ("gmpo", "real", "real-bce", "clip-cov")])
def test_on_policy_the_gradient_is_that_of_reinforce(loss: PolicyLoss) -> None:
    batch = _batch(1)
    batch = replace(batch, old_logprobs_BT=batch.logprobs_BT.clone())
    torch.testing.assert_close(gradient_of(loss, batch), -batch.advantages_BT * batch.loss_mask_BT)


@of(list(EVERY))
def test_nothing_to_train_gives_nothing(loss: PolicyLoss) -> None:
    batch = replace(_batch(1), loss_mask_BT=torch.zeros(3, 4).bool())
    result = loss(batch)
    assert not result.losses_BT.any()
    assert not gradient_of(loss, batch).any()
    assert not any(value.item() for value in result.sums.values())


@of(["clip-cov", "kl-cov", "real", "real-bce"])
def test_what_couples_rows_is_given_all_of_them(loss: PolicyLoss) -> None:
    assert [name for name, other in EVERY.items() if scope_of(other) == "update"] == [
        "clip-cov",
        "kl-cov",
        "real",
        "real-bce",
    ]
    assert scope_of(loss) == "update"


@of(["gspo-turn", "real"])
def test_a_batch_of_rows_of_nothing_is_refused(loss: PolicyLoss) -> None:
    with pytest.raises(InvalidInput, match="ids must name all 3 rows, got 0"):
        loss(replace(_batch(0), ids=RowIds()))


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
    ours = {LOSSES[name] for name in LOSSES}
    assert {type(loss) for loss in EVERY.values()} <= ours
