"""The golden batch of gaps, and how the tests of corrections apply one to it."""

import torch
from torch import Tensor

from envgym.trainer.methods.corrections import Correction, CorrectionResult

GAP = torch.tensor([[0.1, -0.2, 0.9], [0.0, 0.5, 0.0]])
"""Gaps of two rows; the last place of the second is padding. Sums .8 and .5, means .8/3 and .25."""
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()


def correct(correction: Correction, gap: Tensor = GAP, mask: Tensor = MASK) -> CorrectionResult:
    """Apply a correction to a sampler that found every token to have log-prob -1."""
    behavior = torch.full_like(gap, -1.0)
    return correction(old_logprobs_BT=behavior + gap, behavior_logprobs_BT=behavior, loss_mask_BT=mask)


def assert_weights(correction: Correction, expected: list[list[float]]) -> None:
    """Assert the golden batch's weights to six places, and that what has none has left the mask."""
    result = correct(correction)
    torch.testing.assert_close(result.weights_BT, torch.tensor(expected), rtol=0, atol=1e-6)
    assert torch.equal(result.loss_mask_BT, torch.tensor(expected) > 0)
