"""Means over parts of a row: what the ratio of a turn, or of a whole row, is made of."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from envgym.errors import InvalidInput
from envgym.trainer.methods.losses.base import LossBatch

Level = Literal["token", "turn", "sequence"]
"""What one ratio is of: a token, the tokens of one action, or all trained tokens of a row."""


def level_means(values_BT: Float[Tensor, "B T"], batch: LossBatch, level: Level) -> Float[Tensor, "B T"]:
    """Return at every trained token the mean over the trained tokens of its level, and 0 elsewhere.

    The turns are those of the episode, so that two of them stay apart where no token stands between.

    Raises: InvalidInput: the level is `turn`, and it is not known of which turn a trained token is.
    """
    mask_BT = batch.loss_mask_BT
    values_BT = torch.where(mask_BT, values_BT, 0.0)
    if level == "token":
        return values_BT
    spans_BT = _turns(batch) if level == "turn" else torch.zeros_like(mask_BT, dtype=torch.int64)
    num_spans = int(spans_BT.max()) + 1 if spans_BT.numel() else 1
    zeros_BN = values_BT.new_zeros((len(mask_BT), num_spans))
    sums_BN = zeros_BN.scatter_add(1, spans_BT, values_BT)
    counts_BN = zeros_BN.scatter_add(1, spans_BT, mask_BT.to(values_BT.dtype))
    return torch.where(mask_BT, (sums_BN / counts_BN.clamp(min=1.0)).gather(1, spans_BT), 0.0)


def _turns(batch: LossBatch) -> Int[Tensor, "B T"]:
    turns_BT = batch.named_rows.turns_BT
    if bool((batch.loss_mask_BT & (turns_BT < 0)).any()):
        do = "choose loss.level=sequence, or build the batch from episodes"
        raise InvalidInput.of("turns", "name the turn of every trained token", -1, where="a loss per turn", do=do)
    return turns_BT.clamp(min=0)
