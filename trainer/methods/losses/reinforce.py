"""The plain policy gradient."""

import torch

from envgym.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, masked_advantages, weighted_likelihood


class Reinforce(Settings):
    """Weigh the log-probability of a token with its advantage: l = -A log π.

    The ratio to the old policy enters the statistics only: off-policy samples need a correction.

    Source: Williams 1992, doi:10.1007/BF00992696.
    """

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss of every token."""
        advantages_BT = masked_advantages(batch.advantages_BT, batch.loss_mask_BT)
        return TokenLoss(losses_BT=weighted_likelihood(batch, torch.ones_like(advantages_BT), advantages_BT))
