"""DRO: the policy gradient with a quadratic penalty on the log-ratio to the old policy."""

import torch
from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio, masked_advantages


class Dro(Settings):
    """Regularise the policy gradient per token: l = -A log π + beta / 2 (log π/π_old)², the latter clamped to ±20.

    Source: 2405.19107, in verl's form per token.
    """

    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is pulled back."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        mask_BT = batch.loss_mask_BT
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT)
        likelihood_BT = masked_advantages(batch.advantages_BT, mask_BT) * torch.where(mask_BT, batch.logprobs_BT, 0.0)
        return TokenLoss(losses_BT=0.5 * self.beta * log_ratio_BT.square() - likelihood_BT)
