"""TOPR: positive samples without an importance weight, negative ones with a truncated one."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import (
    LossBatch,
    TokenLoss,
    log_ratio,
    masked_advantages,
    weighted_likelihood,
)
from envgym.trainer.methods.tensors import LOG_RATIO_BOUND


class Topr(Settings):
    """Train tokens with A > 0 without a ratio, and weight the others by their truncated importance ratio.

    l = -A log π where A > 0, else -A sg(min(ρ, 1)) log π. `level=sequence` takes the ratio of all trained tokens of the
    row, their product, as in the paper; `token` that of each, as in ROLL. Meant for samples of another policy:
    `objective.old_policy=rollout`. Source: 2503.14286.
    """

    level: Literal["token", "sequence"] = "sequence"
    """Whose ratio tapers."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        advantages_BT = masked_advantages(batch.advantages_BT, batch.loss_mask_BT)
        tapered_BT = self._log_ratio(batch).clamp(max=0.0).exp()
        weights_BT = torch.where(advantages_BT > 0, 1.0, tapered_BT)
        return TokenLoss(losses_BT=weighted_likelihood(batch, weights_BT, advantages_BT))

    def _log_ratio(self, batch: LossBatch) -> Float[Tensor, "B T"]:
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, batch.loss_mask_BT)
        if self.level == "token":
            return log_ratio_BT
        return log_ratio_BT.sum(-1, keepdim=True).clamp(min=-LOG_RATIO_BOUND).expand_as(log_ratio_BT)
