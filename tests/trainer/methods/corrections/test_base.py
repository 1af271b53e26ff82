"""What all corrections share: masks, statistics and the table."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envgym.config.plugins import Choice
from envgym.trainer.methods.corrections import (
    Correction,
    Divergence,
    Geometric,
    IcePop,
    Mis,
    NoCorrection,
    Tis,
    TisLevel,
    WeightLevel,
)
from envgym.trainer.methods.corrections.base import CorrectionStats
from envgym.trainer.methods.corrections.rejection import Over
from tests.support.plugins import CORRECTIONS

ALL: list[Correction] = [
    NoCorrection(),
    Tis(),
    Tis(normalize=True),
    Tis(level=TisLevel.SEQUENCE),
    Tis(level=TisLevel.SEQUENCE, normalize=True),
    Mis(),
    IcePop(),
    Geometric(low=0.5, high=2.0, weights=WeightLevel.TOKEN),
    Divergence(bound=0.5),
    Divergence(bound=0.5, over=Over.MAX, estimator=Choice(name="k2")),
]
NAMES = [
    "none",
    "token",
    "token-normalized",
    "sequence",
    "sequence-normalized",
    "mis",
    "icepop",
    "geometric",
    "k3-mean",
    "k2-max",
]
every_correction = pytest.mark.parametrize("correction", ALL, ids=NAMES)


def _batch(seed: int, rows: int = 3, tokens: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old, behavior = -torch.rand(2, rows, tokens, dtype=torch.float64, generator=generator) * 3
    mask = torch.rand(rows, tokens, generator=generator) < 0.7
    return {"old_logprobs_BT": old, "behavior_logprobs_BT": behavior, "loss_mask_BT": mask}


@every_correction
@given(seed=st.integers(0, 10_000))
def test_masked_tokens_have_weight_zero_and_may_hold_anything(correction: Correction, seed: int) -> None:
    batch = _batch(seed)
    mask = batch["loss_mask_BT"]
    spoilt = {name: value if name == "loss_mask_BT" else value.where(mask, torch.nan) for name, value in batch.items()}
    clean, dirty = correction(**batch), correction(**spoilt)
    assert torch.equal(clean.weights_BT, dirty.weights_BT)
    assert bool((dirty.weights_BT[~mask] == 0).all())
    assert torch.equal(dirty.loss_mask_BT, clean.loss_mask_BT)
    assert not bool((dirty.loss_mask_BT & ~mask).any())
    for field in fields(CorrectionStats):
        assert torch.equal(getattr(clean.stats, field.name), getattr(dirty.stats, field.name))


@every_correction
def test_weights_and_statistics_carry_no_gradient(correction: Correction) -> None:
    batch = _batch(0)
    result = correction(**{**batch, "old_logprobs_BT": batch["old_logprobs_BT"].requires_grad_()})
    assert not result.weights_BT.requires_grad
    assert not any(getattr(result.stats, field.name).requires_grad for field in fields(CorrectionStats))


@every_correction
@given(seed=st.integers(0, 10_000))
def test_a_sampler_that_agrees_needs_no_correction(correction: Correction, seed: int) -> None:
    batch = _batch(seed)
    result = correction(**{**batch, "behavior_logprobs_BT": batch["old_logprobs_BT"]})
    torch.testing.assert_close(result.weights_BT, batch["loss_mask_BT"].double())
    assert torch.equal(result.loss_mask_BT, batch["loss_mask_BT"])
    assert result.stats.gap_sum.item() == 0.0
    assert result.stats.kl_sum.item() == 0.0


@every_correction
@given(seed=st.integers(0, 10_000), padding=st.integers(1, 4))
def test_padding_and_row_order_change_no_weight(correction: Correction, seed: int, padding: int) -> None:
    batch = _batch(seed)
    order = torch.randperm(3, generator=torch.Generator().manual_seed(seed))
    moved = {
        name: torch.nn.functional.pad(value[order], (0, padding), value=0 if name == "loss_mask_BT" else torch.nan)
        for name, value in batch.items()
    }
    torch.testing.assert_close(correction(**moved).weights_BT[:, :4], correction(**batch).weights_BT[order])


@every_correction
def test_a_batch_without_trained_tokens_has_finite_weights_of_zero(correction: Correction) -> None:
    for shape in ((0, 3), (2, 3)):
        nothing = torch.zeros(shape).bool()
        nan = torch.full(shape, torch.nan)
        result = correction(old_logprobs_BT=nan, behavior_logprobs_BT=nan, loss_mask_BT=nothing)
        assert torch.equal(result.weights_BT, torch.zeros(shape))
        assert (result.stats.tokens.item(), result.stats.weight_sum.item()) == (0, 0.0)


@given(seed=st.integers(0, 10_000), cut=st.integers(0, 3))
def test_statistics_of_parts_add_up(seed: int, cut: int) -> None:
    batch = _batch(seed)
    correction = IcePop(low=0.9, high=1.1)
    whole = correction(**batch).stats
    first, second = (
        correction(**{name: value[part] for name, value in batch.items()}).stats
        for part in (slice(None, cut), slice(cut, None))
    )
    for field in fields(CorrectionStats):
        torch.testing.assert_close(getattr(first + second, field.name), getattr(whole, field.name))


def test_the_table_builds_corrections_from_settings() -> None:
    assert CORRECTIONS["none"]() == NoCorrection()
    assert CORRECTIONS["tis"](level="sequence", cap=5) == Tis(level=TisLevel.SEQUENCE, cap=5.0)
