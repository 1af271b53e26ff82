"""A loss that couples rows: the successful episodes of a group shall stay equally likely.

    objective:
      terms:
        - {name: even, loss: "examples/plugins/even_successes.py:EvenSuccesses", coef: 0.01}

With `scope = "update"` a loss is given all rows of an update at once, whole groups among them. It is written as if they
were held together; the learner computes its exact gradient micro-batch by micro-batch.
"""

from typing import ClassVar

import torch
from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.losses import LossBatch, TokenLoss


class EvenSuccesses(Settings):
    """Penalise the variance, over the successful rows of a group, of the mean log-prob of their tokens."""

    scope: ClassVar[str] = "update"
    success_at: float = Field(default=1.0)
    """Least reward of a success."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        """Return the loss, each row's share on its first trained token."""
        mask_BT = batch.loss_mask_BT
        counts_B = mask_BT.sum(dim=-1)
        means_B = torch.where(mask_BT, batch.logprobs_BT, 0.0).sum(dim=-1) / counts_B.clamp(min=1)
        is_success_B = (batch.ids.rewards_B >= self.success_at) & (counts_B > 0)
        shares_B = torch.zeros_like(means_B)
        for group in batch.ids.groups_B[is_success_B].unique():
            of_group_B = is_success_B & (batch.ids.groups_B == group)
            centre = means_B[of_group_B].mean()
            shares_B = torch.where(of_group_B, (means_B - centre).square(), shares_B)
        first_BT = mask_BT & (mask_BT.cumsum(dim=-1) == 1)
        return TokenLoss(losses_BT=torch.where(first_BT, shares_B[:, None], 0.0))
