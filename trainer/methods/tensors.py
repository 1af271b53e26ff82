"""Tensors of rows: the check of their shapes, reductions over trained tokens, and statistics that add up.

Values under the mask, NaN included, cannot reach a reduction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envgym.errors import InvalidInput, sentence

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


def check_rows(loss_mask_BT: Tensor, others: Mapping[str, Tensor], *, where: str) -> None:
    """Refuse tensors that would broadcast against the loss mask instead of matching it.

    Args:
        loss_mask_BT: must be bool, of rank 2.
        others: name -> tensor that must have the mask's shape.
        where: the function that was called.

    Raises:
        InvalidInput: a rule is broken.
    """
    if loss_mask_BT.dtype is not torch.bool or loss_mask_BT.ndim != 2:
        got = f"{loss_mask_BT.dtype} {list(loss_mask_BT.shape)}"
        raise InvalidInput(sentence("loss_mask", "be bool [B, T]", got, where=where, do="convert it with .bool()"))
    for name, tensor in others.items():
        if tensor.shape != loss_mask_BT.shape:
            rule = f"match loss_mask {list(loss_mask_BT.shape)}"
            do = "expand it to one value per token"
            raise InvalidInput(sentence(name, rule, list(tensor.shape), where=where, do=do))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStats:
    """Statistics of a batch as tensors without axes, so that nothing waits for the device.

    Those of disjoint parts join with `+`: a field whose name ends in `_min` or `_max` keeps the least or the greatest
    value, every other field is a sum or a count.
    """

    def __add__(self, other: Self) -> Self:
        """Return the statistics of both parts together."""
        return type(self)(
            **{
                field.name: _join(field.name, getattr(self, field.name), getattr(other, field.name))
                for field in fields(self)
            }
        )


def _join(name: str, left: Tensor, right: Tensor) -> Tensor:
    if name.endswith("_min"):
        return torch.minimum(left, right)
    return torch.maximum(left, right) if name.endswith("_max") else left + right
