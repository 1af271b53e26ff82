"""GMPO: the geometric mean of a sequence's clipped ratios."""

import torch
from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio, loss_stats, masked_advantages
from envgym.trainer.methods.losses.levels import level_means


class Gmpo(Settings):
    """Weigh a token's advantage with the geometric mean of the ratios of its row, each clipped on one side.

    With z = log ρ (clamped to ±20), clipped where the advantage pushes: c = min(z, clip_high) where A > 0, else
    max(z, -clip_low); l = -A exp(mean of c over the row's trained tokens), with gradient by each of them. An outlier
    among the ratios counts as its logarithm, so that the clip may be wide. Source: 2507.20673.
    """

    clip_low: float = Field(default=0.4, ge=0)
    """How far the log-ratio of a token with A <= 0 may fall before it stops training."""
    clip_high: float = Field(default=0.4, ge=0)
    """How far the log-ratio of a token with A > 0 may rise before it stops training."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        mask_BT = batch.loss_mask_BT
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT)
        advantages_BT = masked_advantages(batch.advantages_BT, mask_BT)
        is_raised_BT = advantages_BT > 0
        clipped_BT = torch.where(
            is_raised_BT, log_ratio_BT.clamp(max=self.clip_high), log_ratio_BT.clamp(min=-self.clip_low)
        )
        stats = loss_stats(
            log_ratio_BT,
            mask_BT,
            clipped_low_BT=~is_raised_BT & (log_ratio_BT < -self.clip_low),
            clipped_high_BT=is_raised_BT & (log_ratio_BT > self.clip_high),
        )
        return TokenLoss(losses_BT=-advantages_BT * level_means(clipped_BT, batch, "sequence").exp(), stats=stats)
