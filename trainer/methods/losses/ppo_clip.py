"""PPO's clipped objective, with asymmetric bounds and an optional dual clip."""

import torch
from pydantic import Field

from envgym.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio, loss_stats, masked_advantages


class PpoClip(Settings):
    """Bound how far one update can move the probability of a token.

    With ρ = π/π_old (its logarithm clamped to ±20):
        l = max(-A ρ, -A clip(ρ, 1 - clip_low, 1 + clip_high)); where A < 0 also l = min(l, -c A), c = dual_clip.

    Source: 1707.06347 (PPO), 1912.09729 (dual clip), 2503.14476 (asymmetric bounds).
    """

    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far below 1 the ratio may fall before a token with A < 0 stops training."""
    clip_high: float = Field(default=0.2, ge=0)
    """How far above 1 the ratio may rise before a token with A > 0 stops training."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound c on the ratio of tokens with A < 0; None = none."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the clipped loss of every token."""
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, batch.loss_mask_BT)
        advantages_BT = masked_advantages(batch.advantages_BT, batch.loss_mask_BT)
        ratio_BT = log_ratio_BT.exp()
        clipped_ratio_BT = ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high)
        losses_BT = torch.maximum(-advantages_BT * ratio_BT, -advantages_BT * clipped_ratio_BT)
        clipped_dual_BT = None
        if self.dual_clip is not None:
            clipped_dual_BT = (advantages_BT < 0) & (ratio_BT > self.dual_clip)
            losses_BT = torch.where(clipped_dual_BT, -advantages_BT * self.dual_clip, losses_BT)
        stats = loss_stats(
            log_ratio_BT,
            batch.loss_mask_BT,
            clipped_low_BT=(advantages_BT < 0) & (ratio_BT < 1 - self.clip_low),
            clipped_high_BT=(advantages_BT > 0) & (ratio_BT > 1 + self.clip_high),
            clipped_dual_BT=clipped_dual_BT,
        )
        return TokenLoss(losses_BT=losses_BT, stats=stats)
