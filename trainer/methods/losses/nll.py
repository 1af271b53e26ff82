"""The negative log-likelihood: imitation."""

import torch

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss


class NegativeLogLikelihood(Settings):
    """Return l = -log π of every token, whatever its advantage: supervised training as a term of the objective.

    On the demonstrations `rewritten` the policy memorises what it looked up (2505.17005, R1-Searcher++); on the tokens
    that a tool said (`origins: [TOOL]`), in the episodes that succeeded, it does so without a model that rewrites them.
    """

    min_reward: float | None = None
    """Least reward of the episodes that are imitated; null: all are."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        mask_BT = batch.loss_mask_BT
        if self.min_reward is not None:
            mask_BT = mask_BT & (batch.ids.rewards_B >= self.min_reward)[:, None]
        return TokenLoss(losses_BT=-torch.where(mask_BT, batch.logprobs_BT, 0.0))
