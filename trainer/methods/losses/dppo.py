"""DPPO: tokens stop training by how far their probability moved, not by its ratio."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import (
    LossBatch,
    TokenLoss,
    log_ratio,
    loss_stats,
    masked_advantages,
    weighted_likelihood,
)
from envgym.trainer.methods.tensors import masked_sum

_TINY = 1e-8
"""Added to the probability of all other tokens, which may be 0."""


class _Dppo(Settings, ABC):
    """l = -A sg(min(ρ, cap)) log π where the token may go on in the direction of A, else 0; ρ = π/π_old.

    The old policy is the one that sampled in the authors' code: `objective.old_policy=rollout`. The share of weights
    that the cap bounds is measured as `capped`.
    """

    cap: float = Field(default=20.0, gt=0)
    """Largest weight. Truncation biases: the authors advise a large one."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        mask_BT = batch.loss_mask_BT
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT).detach()
        old_logprobs_BT = torch.where(mask_BT, batch.old_logprobs_BT, 0.0)
        advantages_BT = masked_advantages(batch.advantages_BT, mask_BT)
        too_low_BT, too_high_BT = self.too_far(old_logprobs_BT, old_logprobs_BT + log_ratio_BT)
        is_raised_BT = advantages_BT > 0
        dropped_BT = torch.where(is_raised_BT, too_high_BT, too_low_BT)
        weights_BT = log_ratio_BT.exp().clamp(max=self.cap).masked_fill(dropped_BT, 0.0)
        stats = loss_stats(
            log_ratio_BT,
            mask_BT,
            clipped_low_BT=too_low_BT & (advantages_BT < 0),
            clipped_high_BT=too_high_BT & is_raised_BT,
        )
        return TokenLoss(
            losses_BT=weighted_likelihood(batch, weights_BT, advantages_BT),
            stats=stats,
            sums={"capped": masked_sum((weights_BT == self.cap).to(weights_BT.dtype), mask_BT)},
        )

    @abstractmethod
    def too_far(
        self, old_logprobs_BT: Float[Tensor, "B T"], logprobs_BT: Float[Tensor, "B T"]
    ) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return which tokens have fallen too far, and which have risen too far."""


class DppoTv(_Dppo):
    """DPPO by total variation: a token may rise by threshold_high in probability where A > 0, else fall by the other.

    The probability of the sampled token against all others, d = π - π_old. Source: 2602.04879.
    """

    threshold_low: float = Field(default=0.15, ge=0, le=1)
    """How far the probability may fall."""
    threshold_high: float = Field(default=0.15, ge=0, le=1)
    """How far the probability may rise."""

    def too_far(
        self, old_logprobs_BT: Float[Tensor, "B T"], logprobs_BT: Float[Tensor, "B T"]
    ) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B T"]]:
        moved_BT = logprobs_BT.exp() - old_logprobs_BT.exp()
        return moved_BT < -self.threshold_low, moved_BT > self.threshold_high


class DppoKl(_Dppo):
    """DPPO by the KL divergence of the sampled token against all others, in the direction that A pushes.

    With p = π, q = π_old: q log(q / p) + (1 - q) log((1 - q) / (1 - p)) in nats. Source: 2602.04879.
    """

    threshold_low: float = Field(default=0.05, ge=0)
    """Largest divergence of a token whose probability fell."""
    threshold_high: float = Field(default=0.05, ge=0)
    """Largest divergence of a token whose probability rose."""

    def too_far(
        self, old_logprobs_BT: Float[Tensor, "B T"], logprobs_BT: Float[Tensor, "B T"]
    ) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B T"]]:
        old_BT, new_BT = old_logprobs_BT.exp(), logprobs_BT.exp()
        rest_BT = ((1 - old_BT + _TINY) / (1 - new_BT + _TINY)).log()
        divergence_BT = old_BT * (old_logprobs_BT - logprobs_BT) + (1 - old_BT) * rest_BT
        return (
            (divergence_BT > self.threshold_low) & (new_BT < old_BT),
            (divergence_BT > self.threshold_high) & (new_BT > old_BT),
        )
