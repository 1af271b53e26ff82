"""The contract of a policy loss, what it returns, and the statistics all of them share."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from envgym.trainer.methods.losses.kl import k3
from envgym.trainer.methods.tensors import LOG_RATIO_BOUND, BatchStats, check_rows, masked_max, masked_min, masked_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStats(BatchStats):
    """How far the policy moved from the one before the update: detached sums and counts over trained tokens.

    The caller divides by `tokens`.
    """

    tokens: Int[Tensor, ""]
    """Trained tokens."""
    ratio_sum: Float[Tensor, ""]
    """Σ π/π_old."""
    ratio_min: Float[Tensor, ""]
    """min π/π_old; +inf without trained tokens."""
    ratio_max: Float[Tensor, ""]
    """max π/π_old; -inf without trained tokens."""
    kl_sum: Float[Tensor, ""]
    """Σ k3 of KL(π_old || π), in nats."""
    clipped_low: Int[Tensor, ""]
    """Tokens with A < 0 whose gradient is cut because the ratio fell below the lower bound."""
    clipped_high: Int[Tensor, ""]
    """Tokens with A > 0 whose gradient is cut because the ratio rose above the upper bound."""
    clipped_dual: Int[Tensor, ""]
    """Tokens with A < 0 whose gradient is cut because the ratio rose above the dual clip's bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """The loss of every token, to be weighted and aggregated by the caller."""

    losses_BT: Float[Tensor, "B T"]
    """Exactly 0, with gradient 0, where the mask is False."""
    stats: LossStats
    """Detached."""


@runtime_checkable
class PolicyLoss(Protocol):
    """A loss per token from log-probabilities and advantages."""

    def __call__(
        self,
        *,
        logprobs_BT: Float[Tensor, "B T"],
        old_logprobs_BT: Float[Tensor, "B T"],
        advantages_BT: Float[Tensor, "B T"],
        loss_mask_BT: Bool[Tensor, "B T"],
    ) -> TokenLoss:
        """Return the loss to be minimised.

        Args:
            logprobs_BT: [B, T] of the policy being trained, with gradient, in nats.
            old_logprobs_BT: [B, T] of the policy before the update, in the same packing and temperature.
            advantages_BT: [B, T], without gradient.
            loss_mask_BT: [B, T] bool, True = trains. Values of the other tensors under it are never read.
        """
        ...


def log_ratio(
    logprobs_BT: Float[Tensor, "B T"], old_logprobs_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return log(π/π_old) clamped to ±20, and 0 with gradient 0 where the mask is False.

    The difference is masked before anything else is computed from it, so that no NaN enters the backward pass.
    """
    others = {"logprobs": logprobs_BT, "old_logprobs": old_logprobs_BT}
    check_rows(loss_mask_BT, others, where="a policy loss")
    difference_BT = torch.where(loss_mask_BT, logprobs_BT - old_logprobs_BT, 0.0)
    return difference_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def masked_advantages(advantages_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the advantages, 0 where the mask is False."""
    check_rows(loss_mask_BT, {"advantages": advantages_BT}, where="a policy loss")
    return torch.where(loss_mask_BT, advantages_BT, 0.0)


def loss_stats(
    log_ratio_BT: Float[Tensor, "B T"],
    loss_mask_BT: Bool[Tensor, "B T"],
    *,
    clipped_low_BT: Bool[Tensor, "B T"] | None = None,
    clipped_high_BT: Bool[Tensor, "B T"] | None = None,
    clipped_dual_BT: Bool[Tensor, "B T"] | None = None,
) -> LossStats:
    """Sum up a batch; None = this loss has no such clip."""
    log_ratio_BT = log_ratio_BT.detach()
    ratio_BT = log_ratio_BT.exp()

    def count(clipped_BT: Bool[Tensor, "B T"] | None) -> Int[Tensor, ""]:
        return (
            loss_mask_BT.new_zeros((), dtype=torch.int64) if clipped_BT is None else (clipped_BT & loss_mask_BT).sum()
        )

    return LossStats(
        tokens=loss_mask_BT.sum(),
        ratio_sum=masked_sum(ratio_BT, loss_mask_BT),
        ratio_min=masked_min(ratio_BT, loss_mask_BT),
        ratio_max=masked_max(ratio_BT, loss_mask_BT),
        kl_sum=masked_sum(k3(-log_ratio_BT), loss_mask_BT),
        clipped_low=count(clipped_low_BT),
        clipped_high=count(clipped_high_BT),
        clipped_dual=count(clipped_dual_BT),
    )


def entropy_bonus(entropies_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the loss -H of every trained token; minimising it keeps the policy exploring.

    Args:
        entropies_BT: [B, T] in nats, with gradient, as `learner.logprobs` computes them from hidden states.
        loss_mask_BT: [B, T] bool, True = trains.

    Returns:
        [B, T], to be multiplied with a coefficient and added to a policy loss before aggregation; exactly 0, with
        gradient 0, where the mask is False.
    """
    check_rows(loss_mask_BT, {"entropies": entropies_BT}, where="entropy_bonus")
    return -torch.where(loss_mask_BT, entropies_BT, 0.0)
