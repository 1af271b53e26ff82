"""The contract of a loss, for every one in the table: under the mask nothing is read, and nothing is left."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from envgym.trainer.methods.losses.base import LossBatch, PolicyLoss, scope_of
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
    """Return the batch with NaN under its mask."""

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
