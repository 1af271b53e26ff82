"""The negative log-likelihood: imitation."""

import torch

from envgym.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss


class NegativeLogLikelihood(Settings):
    """Return l = -log π of every token, whatever its advantage: supervised training as a term of the objective."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss of every token."""
        return TokenLoss(losses_BT=-torch.where(batch.loss_mask_BT, batch.logprobs_BT, 0.0))
