"""The loss of a critic's values."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envgym.trainer.methods.tensors import check_rows


def value_loss(
    values_BT: Float[Tensor, "B T"],
    targets_BT: Float[Tensor, "B T"],
    old_values_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    *,
    clip: float | None = None,
) -> Float[Tensor, "B T"]:
    """Return l = (V - R)² / 2; with a clip c the larger of that and ((V_old + clamp(V - V_old, ±c)) - R)² / 2.

    Clipped, a value stops learning once it is further than c from what it was before the update, on the target's side.

    Source: the clip is of the code of 1707.06347 (PPO).

    Args:
        values_BT: [B, T] V, with gradient.
        targets_BT: [B, T] R, without gradient.
        old_values_BT: [B, T] V_old, of the critic before the update; read only where there is a clip.
        mask_BT: [B, T] bool, True = supervised. What the other tensors hold under it is never read.
        clip: c > 0.

    Returns:
        [B, T], exactly 0, with gradient 0, where the mask is False.
    """
    check_rows(mask_BT, {"values": values_BT, "targets": targets_BT, "old_values": old_values_BT}, where="value_loss")
    losses_BT = torch.where(mask_BT, values_BT - targets_BT, 0.0).square()
    if clip is not None:
        moved_BT = torch.where(mask_BT, values_BT - old_values_BT, 0.0).clamp(-clip, clip)
        before_BT = torch.where(mask_BT, old_values_BT - targets_BT, 0.0)
        losses_BT = torch.maximum(losses_BT, (before_BT + moved_BT).square())
    return 0.5 * losses_BT
