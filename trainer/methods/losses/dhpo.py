"""DHPO: the ratio of a token mixed with that of its sequence."""

import torch
from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio, masked_advantages
from envgym.trainer.methods.losses.levels import level_means


class Dhpo(Settings):
    """Mix two ratios, each clipped in its own region before: that of the token, and GSPO's of its row.

    l = -A (w clip(ρ, 1 - clip_low, 1 + clip_high) + (1 - w) clip(s, 1 - sequence_clip_low, 1 + sequence_clip_high)),
    with s as in `Gspo`. Both sides of a clip stop training, whatever the sign of A. Source: 2601.05607, of which no
    code is published: weight and bounds are ours, and the paper's weight by entropy is left out.
    """

    token_weight: float = Field(default=0.5, ge=0, le=1)
    """w, the share of the token's ratio."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far below 1 the token's ratio may fall."""
    clip_high: float = Field(default=0.2, ge=0)
    """How far above 1 the token's ratio may rise."""
    sequence_clip_low: float = Field(default=3e-4, ge=0, le=1)
    """How far below 1 the row's ratio may fall."""
    sequence_clip_high: float = Field(default=4e-4, ge=0)
    """How far above 1 the row's ratio may rise."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        mask_BT = batch.loss_mask_BT
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT)
        own_BT = log_ratio_BT - log_ratio_BT.detach()
        of_row_BT = (level_means(log_ratio_BT.detach(), batch, "sequence") + own_BT).exp()
        of_token_BT = log_ratio_BT.exp().clamp(1 - self.clip_low, 1 + self.clip_high)
        of_row_BT = of_row_BT.clamp(1 - self.sequence_clip_low, 1 + self.sequence_clip_high)
        mixed_BT = torch.lerp(of_row_BT, of_token_BT, self.token_weight)
        return TokenLoss(losses_BT=-masked_advantages(batch.advantages_BT, mask_BT) * mixed_BT)
