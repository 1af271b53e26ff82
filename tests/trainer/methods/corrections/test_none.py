"""No correction: weight 1, and the gap measured by hand."""

from math import exp

import pytest
import torch

from envgym.trainer.methods.corrections import NoCorrection


def test_weights_are_one_and_the_gap_is_measured() -> None:
    result = NoCorrection()(
        old_logprobs_BT=torch.tensor([[-1.0, -2.0, -3.0]]),
        behavior_logprobs_BT=torch.tensor([[-1.5, -1.0, -9.0]]),
        loss_mask_BT=torch.tensor([[True, True, False]]),
    )
    assert result.weights_BT.tolist() == [[1.0, 1.0, 0.0]]
    stats = result.stats
    assert (stats.tokens.item(), stats.truncated_tokens.item(), stats.rejected_tokens.item()) == (2, 0, 0)
    assert (stats.weight_sum.item(), stats.weight_square_sum.item()) == (2.0, 2.0)
    assert (stats.gap_sum.item(), stats.gap_max.item()) == (1.5, 1.0)  # |.5| + |-1|
    assert stats.kl_sum.item() == pytest.approx((exp(0.5) - 1 - 0.5) + (exp(-1) - 1 + 1), abs=1e-6)
