"""The entropy bonus."""

import torch

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss


class Entropy(Settings):
    """Return l = -H of the distribution that each token was drawn from; minimising it keeps the policy exploring."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss of every token. Raises: InvalidInput: the batch holds no entropies."""
        return TokenLoss(losses_BT=-torch.where(batch.loss_mask_BT, batch.entropies, 0.0))
