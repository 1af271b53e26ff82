"""Tensors of rows: their way to the device, the check of their shapes, reductions, and statistics that add up.

Values under the mask, NaN included, cannot reach a reduction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import accumulate
from typing import Any, Final, Self, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envgym.errors import InvalidInput

LOG_RATIO_BOUND = 20.0
"""Where log-ratios are clamped before exp: exp(±20) is 4.9e8 and 2.1e-9, far outside any clip range or cap and far
inside float32."""
_ALIGNMENT: Final = 64
"""Bytes; every tensor of a joint copy begins at a multiple of them."""
Record = TypeVar("Record")


def to_device(record: Record, device: torch.device) -> Record:
    """Return a tensor, or a record or mapping of tensors, on a device; those from the CPU travel in one copy.

    On CUDA the copy is made from pinned memory, and no one waits for it.
    """
    tensors = {id(tensor): tensor for tensor in _tensors_of(record)}
    if device.type == "cpu" or not tensors:
        return record
    copies = dict(zip(tensors, copy_together(list(tensors.values()), device), strict=True))
    moved: Record = _with_copies(record, copies)
    return moved


def copy_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors of the CPU on a device: slices of one buffer, which is copied at once."""
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    starts = list(accumulate(sizes, initial=0))
    buffer = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")

    def slices_of(whole: Tensor) -> list[Tensor]:
        return [
            whole[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for start, tensor in zip(starts[:-1], tensors, strict=True)
        ]

    for part, tensor in zip(slices_of(buffer), tensors, strict=True):
        part.copy_(tensor)
    return slices_of(buffer.to(device, non_blocking=True))


def _tensors_of(value: Any) -> Iterator[Tensor]:  # a field of any kind
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors_of(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors_of(getattr(value, field.name))


def _with_copies(value: Any, copies: Mapping[int, Tensor]) -> Any:  # a field of any kind
    if isinstance(value, Tensor):
        return copies[id(value)]
    if isinstance(value, Mapping):
        return {name: _with_copies(item, copies) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: _with_copies(part, copies) for name, part in parts.items()})
    return value


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
        raise InvalidInput.of("loss_mask", "be bool [B, T]", got, where=where, do="convert it with .bool()")
    for name, tensor in others.items():
        if tensor.shape != loss_mask_BT.shape:
            rule = f"match loss_mask {list(loss_mask_BT.shape)}"
            raise InvalidInput.of(name, rule, list(tensor.shape), where=where, do="expand it to one value per token")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStats:
    """Statistics of a batch as tensors without axes, so that nothing waits for the device.

    Those of disjoint parts join with `+`: a field whose name ends in `_min` or `_max` keeps the least or the greatest
    value, every other field is a sum or a count.
    """

    def __add__(self, other: Self) -> Self:
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
