"""What a batch of rows is divided by, counted from its tensors; the learner counts it from its rows."""

import torch
from torch import Tensor

from envgym.trainer.methods.losses import Denominator


def denominator_of(mask: Tensor, weights: Tensor | None = None, shares: Tensor | None = None) -> Denominator:
    """Count a batch: a token trains where the mask is True and its weight, by default 1, is not 0."""
    trained = torch.where(mask, mask.double() if weights is None else weights.double(), 0.0)
    counts = (trained > 0).any(dim=-1).double() * (1.0 if shares is None else shares.double())
    return Denominator(tokens=trained.sum().item(), sequences=counts.sum().item())
