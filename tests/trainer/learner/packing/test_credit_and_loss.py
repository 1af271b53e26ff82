"""Whatever credit and loss say of rows, a pack of them has the same loss and the same gradient."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from envgym.trainer.batch.rows import MicroBatch, TrainRow, pad, train_rows
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.methods.losses import LossBatch, PolicyLoss, TokenMean, kl_to_reference
from envgym.trainer.methods.losses.kl import k3
from envgym.trainer.methods.losses.kl_reference import REFERENCE
from tests.support.denominators import denominator_of
from tests.support.plugins import CREDITS, LOSSES
from tests.trainer.learner.packing.forest import CPU, assert_close, both, build, gradients, group

MODELS = {torch.float64: build(), torch.float32: build(dtype=torch.float32)}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
NEAR = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Distance in nats from a clip bound or threshold at which rounding may decide."""


def full_loss(loss: PolicyLoss, scored: TokenLogprobs, batch: MicroBatch, old_BT: Tensor) -> Tensor:
    """Return policy loss, KL to a reference and entropy together, averaged over sequences with the rows' weights."""
    mask_BT = batch.loss_mask_BT
    logprobs_BT, entropies_BT = scored.logprobs_BT, scored.entropies_BT
    assert entropies_BT is not None
    token_loss = loss(
        LossBatch(
            logprobs_BT=logprobs_BT,
            old_logprobs_BT=old_BT,
            advantages_BT=batch.advantages_BT.to(old_BT.dtype),
            loss_mask_BT=mask_BT,
            entropies_BT=entropies_BT,
            behavior_logprobs_BT=old_BT,
            weights_BT=batch.weights_BT,
            ids=batch.ids,
            states_BD=scored.states_BD,
            scores=dict.fromkeys([REFERENCE, *(request.name for request in getattr(loss, "scores", ()))], old_BT - 0.2),
        )
    )
    losses_BT = token_loss.losses_BT
    losses_BT = losses_BT + 0.1 * kl_to_reference(logprobs_BT, old_BT - 0.2, mask_BT, estimator=k3)
    losses_BT = losses_BT - 0.01 * torch.where(mask_BT, entropies_BT, 0.0)
    denominator = denominator_of(mask_BT, batch.weights_BT)
    return TokenMean()(losses_BT, mask_BT, batch.weights_BT, denominator=denominator)


def is_smooth(loss: PolicyLoss, scored: TokenLogprobs, batch: MicroBatch, old_BT: Tensor) -> bool:
    """Return whether the loss has one slope near where it is, so that no threshold lies there."""
    slopes = []
    near = NEAR[old_BT.dtype]
    for step in (-near, near):
        moved_BT = (scored.logprobs_BT.detach() + step).requires_grad_()
        entropies_BT = scored.entropies_BT
        assert entropies_BT is not None
        there = TokenLogprobs(moved_BT, entropies_BT.detach(), scored.states_BD)
        slopes.append(torch.autograd.grad(full_loss(loss, there, batch, old_BT), moved_BT)[0])
    return bool((slopes[0] - slopes[1]).abs().max() < 1e-4)


def rows_of(rng: random.Random, credit: str, *, once: bool) -> list[TrainRow]:
    groups = [group(rng, name=name) for name in ("a", "b")]
    return train_rows([item for each in groups for item in CREDITS[credit]()(each)], once=once)


@pytest.mark.parametrize(
    "dtype, once, seed", [(torch.float64, True, 1), (torch.float64, False, 2), (torch.float32, False, 2)]
)
def test_every_credit_with_every_loss_is_exact(dtype: torch.dtype, once: bool, seed: int) -> None:
    model = MODELS[dtype]
    by_credit = {credit: rows_of(random.Random(seed), credit, once=once) for credit in CREDITS}
    generator = torch.Generator().manual_seed(seed)
    for pair in both(model, by_credit["grpo"], max_tokens=200):
        now_BT = pair.padded.logprobs_BT.detach()
        old_BT = now_BT + 0.3 * torch.randn(now_BT.shape, dtype=dtype, generator=generator)  # about half is clipped
        packed_sum = padded_sum = torch.zeros((), dtype=dtype)
        for rows, build_loss in itertools.product(by_credit.values(), LOSSES.values()):
            advantages_BT = pad(rows, pair.batch.rows, CPU).advantages_BT
            batch, loss = replace(pair.batch, advantages_BT=advantages_BT), build_loss()
            if not is_smooth(loss, pair.padded, batch, old_BT):
                continue
            found, expected = (full_loss(loss, scored, batch, old_BT) for scored in (pair.packed, pair.padded))
            assert_close(found, expected, TOLERANCE[dtype])
            # A random share of each: one gradient of the sum tells as much as a gradient of each, far sooner.
            share = torch.randn((), dtype=dtype, generator=generator)
            packed_sum, padded_sum = packed_sum + share * found, padded_sum + share * expected
        assert_close(gradients(model, packed_sum), gradients(model, padded_sum), TOLERANCE[dtype])
