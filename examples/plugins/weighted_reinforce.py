"""A loss: what is minimised at every token.

    envgym train run.yaml --set loss.name=examples/plugins/weighted_reinforce.py:WeightedReinforce

A loss is a pure function of log-probs, advantages and a mask, all [B, T]. It returns the loss of every token, exactly 0
where the mask is False, and statistics that `loss_stats` computes. Aggregation, KL term and entropy follow elsewhere.
"""

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from envgym.settings import Settings
from envgym.trainer.methods.losses import TokenLoss
from envgym.trainer.methods.losses.base import log_ratio, loss_stats, masked_advantages


class WeightedReinforce(Settings):
    """Weigh the policy gradient by the ratio, capped and without gradient: l = -min(π/π_old, cap) A log π."""

    cap: float = Field(default=2.0, gt=0)
    """Largest weight."""

    def __call__(
        self,
        *,
        logprobs_BT: Float[Tensor, "B T"],
        old_logprobs_BT: Float[Tensor, "B T"],
        advantages_BT: Float[Tensor, "B T"],
        loss_mask_BT: Bool[Tensor, "B T"],
    ) -> TokenLoss:
        """Return the loss of every token; arguments as for `PolicyLoss`."""
        log_ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, loss_mask_BT)
        weights_BT = log_ratio_BT.detach().exp().clamp(max=self.cap)
        logprobs_BT = torch.where(loss_mask_BT, logprobs_BT, 0.0)
        losses_BT = -weights_BT * masked_advantages(advantages_BT, loss_mask_BT) * logprobs_BT
        is_high_BT = (log_ratio_BT.exp() > self.cap) & (advantages_BT > 0)
        return TokenLoss(losses_BT=losses_BT, stats=loss_stats(log_ratio_BT, loss_mask_BT, clipped_high_BT=is_high_BT))
