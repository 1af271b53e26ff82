"""Clip-Cov and KL-Cov: limit the training of the few tokens that reduce entropy most.

Entropy falls by the covariance of advantage and log-prob: a token adds (A - mean A) (log π - mean log π), with means
over all trained tokens of the update. The numbers choose tokens and carry no gradient. Source: 2505.22617.
"""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from envgym.config.settings import Settings
from envgym.seeds import derive_seed
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio, loss_stats, masked_advantages
from envgym.trainer.methods.losses.ppo_clip import clipped_objective
from envgym.trainer.methods.tensors import masked_sum


def covariances(batch: LossBatch) -> Float[Tensor, "B T"]:
    """Return each trained token's part of the covariance of advantage and log-prob; -inf elsewhere."""
    mask_BT = batch.loss_mask_BT
    parts_BT = torch.ones_like(batch.logprobs_BT)
    for values_BT in (batch.advantages_BT, batch.logprobs_BT.detach()):
        mean = masked_sum(values_BT, mask_BT) / mask_BT.sum().clamp(min=1)
        parts_BT = parts_BT * (values_BT - mean)
    return torch.where(mask_BT, parts_BT, -torch.inf)


def _count(share: float, batch: LossBatch) -> int:
    """Return how many tokens are chosen: that share of the trained ones, and at least one."""
    return max(1, int(share * int(batch.loss_mask_BT.sum())))


class ClipCov(Settings):
    """PPO's clipped objective, without the gradient of a few tokens of large covariance.

    Of the tokens that PPO does not clip and whose covariance lies between `low` and `high`, `share` of all trained
    tokens (at least one) are drawn at random; their loss is 0, and they go on counting in the denominator. The
    covariance is that of the update, the authors' that of a micro-batch. Measured: `held_back`, the share drawn.
    """

    scope: ClassVar[str] = "update"

    share: float = Field(default=2e-4, gt=0, le=1)
    """Largest share of the trained tokens that is drawn."""
    low: float = 1.0
    """Least covariance of a token that may be drawn."""
    high: float = 5.0
    """Largest covariance of a token that may be drawn."""
    clip_low: float = Field(default=1.0, ge=0, le=1)
    """As in PPO."""
    clip_high: float = Field(default=1.0, ge=0)
    """As in PPO."""
    seed: int = 0
    """Of the draws, together with the train step."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, batch.loss_mask_BT)
        advantages_BT = masked_advantages(batch.advantages_BT, batch.loss_mask_BT)
        clipped = clipped_objective(log_ratio_BT.exp(), advantages_BT, clip_low=self.clip_low, clip_high=self.clip_high)
        held_BT = self._drawn(batch, clipped.low_BT | clipped.high_BT)
        stats = loss_stats(
            log_ratio_BT, batch.loss_mask_BT, clipped_low_BT=clipped.low_BT, clipped_high_BT=clipped.high_BT
        )
        return TokenLoss(
            losses_BT=clipped.losses_BT.masked_fill(held_BT, 0.0), stats=stats, sums={"held_back": held_BT.sum()}
        )

    def _drawn(self, batch: LossBatch, clipped_BT: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
        covariances_BT = covariances(batch)
        candidates_BT = (covariances_BT > self.low) & (covariances_BT < self.high) & ~clipped_BT
        places = candidates_BT.flatten().nonzero()[:, 0]
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "clip_cov", batch.step))
        order = torch.randperm(len(places), generator=generator)[: _count(self.share, batch)]
        drawn_BT = torch.zeros_like(candidates_BT)
        drawn_BT.view(-1)[places[order.to(places.device)]] = True
        return drawn_BT


class KlCov(Settings):
    """The policy gradient without a clip, with a penalty on the tokens of the largest covariance.

    l = -A ρ, and on `share` of the trained tokens (at least one), those of the largest covariance in the update,
    l = -A ρ + coef |log ρ|; log ρ is clamped to ±20. Measured: `held_back`, the share penalised.
    """

    scope: ClassVar[str] = "update"

    share: float = Field(default=2e-4, gt=0, le=1)
    """Of the trained tokens, those that are penalised."""
    coef: float = Field(default=1.0, ge=0)
    """Weight of the penalty. The authors' script has 1, verl's settings have 0.1."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        mask_BT = batch.loss_mask_BT
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT)
        losses_BT = -masked_advantages(batch.advantages_BT, mask_BT) * log_ratio_BT.exp()
        count = min(_count(self.share, batch), mask_BT.numel())
        held_BT = torch.zeros_like(mask_BT)
        held_BT.view(-1)[covariances(batch).flatten().topk(count).indices] = True
        held_BT = held_BT & mask_BT
        losses_BT = losses_BT + torch.where(held_BT, self.coef * log_ratio_BT.abs(), 0.0)
        return TokenLoss(losses_BT=losses_BT, sums={"held_back": held_BT.sum()})
