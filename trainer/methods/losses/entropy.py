"""The entropy bonus."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envgym.trainer.methods.tensors import check_rows


def entropy_bonus(entropies_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the loss -H of every trained token; minimising it keeps the policy exploring.

    Args:
        entropies_BT: [B, T] in nats, with gradient, as `learner.logprobs` computes them from hidden states.
        loss_mask_BT: [B, T] bool, True = trains.

    Returns:
        [B, T], to be multiplied with a coefficient and added to a policy loss before aggregation; exactly 0, with
        gradient 0, where the mask is False.
    """
    check_rows(loss_mask_BT, {"entropies": entropies_BT}, where="entropy_bonus")
    return -torch.where(loss_mask_BT, entropies_BT, 0.0)
