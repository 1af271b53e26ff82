"""Geometric rejection: rows by the mean of their gaps, whatever their length."""

import pytest
import torch

from envgym.trainer.methods.corrections import Geometric, Mis, WeightLevel
from tests.trainer.methods.corrections.gaps import GAP, MASK, assert_weights, correct


@pytest.mark.parametrize(
    "correction, expected",
    [
        # exp(.8 / 3) = 1.305605 and exp(.5 / 2) = 1.284025
        (Geometric(high=1.3), [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
        (Geometric(high=1.31), [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]),
        (Geometric(), [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        # Seq-Mask-TIS: token weights without a cap, in kept rows
        (Geometric(high=1.31, weights=WeightLevel.TOKEN), [[1.105171, 0.818731, 2.459603], [1.0, 1.648721, 0.0]]),
    ],
)
def test_golden_weights(correction: Geometric, expected: list[list[float]]) -> None:
    assert_weights(correction, expected)


def test_a_row_repeated_behind_itself_is_judged_as_before_and_its_product_is_not() -> None:
    twice, mask = GAP.repeat(1, 4), MASK.repeat(1, 4)  # products exp(3.2) = 24.5 and exp(2) = 7.4
    assert torch.equal(
        correct(Geometric(high=1.3), twice, mask).loss_mask_BT[:, :3], correct(Geometric(high=1.3)).loss_mask_BT
    )
    assert not bool(correct(Mis(high=7.0), twice, mask).loss_mask_BT.any())
    assert bool(correct(Mis(high=7.0)).loss_mask_BT.any())


def test_gaps_of_both_signs_cancel() -> None:
    gap = torch.tensor([[3.0, -3.0]])
    assert correct(Geometric(), gap, torch.ones(1, 2).bool()).stats.rejected_tokens.item() == 0
