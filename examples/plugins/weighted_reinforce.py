"""A loss: what is minimised at every token.

    envgym train run.yaml --set loss.name=examples/plugins/weighted_reinforce.py:WeightedReinforce

A loss is a pure function of a `LossBatch`: log-probs, advantages and a mask, all [B, T], and what else is known of the
rows. It returns the loss of every token, exactly 0 where the mask is False, and may count what it clips. Aggregation
and the other terms of the objective follow elsewhere.
"""

import torch
from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.losses import LossBatch, TokenLoss
from envgym.trainer.methods.losses.base import log_ratio, loss_stats, masked_advantages


class WeightedReinforce(Settings):
    """Weigh the policy gradient by the ratio, capped and without gradient: l = -min(π/π_old, cap) A log π."""

    cap: float = Field(default=2.0, gt=0)
    """Largest weight."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss of every token."""
        mask_BT = batch.loss_mask_BT
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT)
        weights_BT = log_ratio_BT.detach().exp().clamp(max=self.cap)
        advantages_BT = masked_advantages(batch.advantages_BT, mask_BT)
        losses_BT = -weights_BT * advantages_BT * torch.where(mask_BT, batch.logprobs_BT, 0.0)
        is_high_BT = (log_ratio_BT.exp() > self.cap) & (advantages_BT > 0)
        return TokenLoss(losses_BT=losses_BT, stats=loss_stats(log_ratio_BT, mask_BT, clipped_high_BT=is_high_BT))
