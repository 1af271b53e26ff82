"""Reductions over the trained tokens of a batch, and the bound all log-ratios share.

Whatever lies under the mask, NaN included, cannot reach a reduction."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Where log-ratios are clamped before exp: exp(±20) is 4.9e8 and 2.1e-9, far outside any clip range or cap and far
inside float32."""


def masked_sum(values_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Sum the values where the mask is True; 0 where it is True nowhere."""
    return torch.where(loss_mask_BT, values_BT, 0.0).sum()


def masked_min(values_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Return the least value where the mask is True; +inf, the identity of min, where it is True nowhere."""
    return _flat_with(torch.where(loss_mask_BT, values_BT, torch.inf), torch.inf).amin()


def masked_max(values_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Return the greatest value where the mask is True; -inf, the identity of max, where it is True nowhere."""
    return _flat_with(torch.where(loss_mask_BT, values_BT, -torch.inf), -torch.inf).amax()


def _flat_with(values_BT: Float[Tensor, "B T"], identity: float) -> Float[Tensor, " values"]:
    """Append the identity of a reduction, which gives the reduction of an empty batch its answer."""
    return torch.cat([values_BT.flatten(), values_BT.new_full((1,), identity)])
