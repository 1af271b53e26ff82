"""The check that tensors belong together, made on entry to the maths."""

from collections.abc import Mapping

import torch
from torch import Tensor

from envgym.errors import InvalidInput, sentence


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
