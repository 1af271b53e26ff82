"""SAPO: a smooth gate of the ratio in place of a clip."""

import torch
from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio, masked_advantages


class Sapo(Settings):
    """Pass the ratio through a sigmoid that has slope 1 at ρ = 1 and flattens on both sides.

    With ρ = π/π_old (its logarithm clamped to ±20): l = -A (4 / τ) sigmoid(τ (ρ - 1)), so that a token's gradient is
    weighed with ρ (1 / cosh²(τ (ρ - 1) / 2)); τ = tau_positive where A > 0, else tau_negative. Source: 2511.20347.
    """

    tau_positive: float = Field(default=1.0, gt=0)
    """How fast tokens with A > 0 fade."""
    tau_negative: float = Field(default=1.05, gt=0)
    """How fast the others do."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, batch.loss_mask_BT).exp()
        advantages_BT = masked_advantages(batch.advantages_BT, batch.loss_mask_BT)
        tau_BT = torch.full_like(advantages_BT, self.tau_negative).masked_fill(advantages_BT > 0, self.tau_positive)
        return TokenLoss(losses_BT=-advantages_BT * (4.0 / tau_BT) * torch.sigmoid(tau_BT * (ratio_BT - 1.0)))
