"""The plain policy gradient."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envgym.settings import Settings
from envgym.trainer.methods.losses.base import TokenLoss, log_ratio, loss_stats, masked_advantages


class Reinforce(Settings):
    """Weigh the log-probability of a token with its advantage: l = -A log π.

    The ratio to the old policy enters the statistics only: off-policy samples need a correction.

    Source: Williams 1992, doi:10.1007/BF00992696.
    """

    def __call__(
        self,
        *,
        logprobs_BT: Float[Tensor, "B T"],
        old_logprobs_BT: Float[Tensor, "B T"],
        advantages_BT: Float[Tensor, "B T"],
        loss_mask_BT: Bool[Tensor, "B T"],
    ) -> TokenLoss:
        """Return the loss of every token; arguments as for `PolicyLoss`."""
        stats = loss_stats(log_ratio(logprobs_BT, old_logprobs_BT, loss_mask_BT), loss_mask_BT)
        advantages_BT = masked_advantages(advantages_BT, loss_mask_BT)
        return TokenLoss(losses_BT=-advantages_BT * torch.where(loss_mask_BT, logprobs_BT, 0.0), stats=stats)
