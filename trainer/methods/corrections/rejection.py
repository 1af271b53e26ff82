"""What corrections that reject have in common: each says only what it rejects."""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envgym.settings import Settings
from envgym.trainer.methods.corrections.base import (
    CorrectionResult,
    WeightLevel,
    behavior_gap,
    correction_result,
    importance_weights,
)


class Rejection(Settings):
    """Stop training on what the trainer and the sampler see too differently, and weigh the rest, uncapped.

    A rejected token has weight 0 and leaves every term of the loss; the denominators go on counting it, so that what
    is kept is not scaled up. Each row is judged by itself. A gap that is not a number is never rejected, so that it is
    seen.
    """

    is_identity: ClassVar[bool] = False
    weights: WeightLevel
    """How what is kept is weighed."""

    @property
    def only_masks(self) -> bool:
        """True without importance weights."""
        return self.weights is WeightLevel.NONE

    @abstractmethod
    def outside(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
        """Return what is rejected, as [B, T] or as [B, 1] for whole rows.

        Args:
            gap_BT: [B, T] log ρ, 0 where the mask is False.
            loss_mask_BT: [B, T] bool, True = trains.
        """

    def __call__(
        self,
        *,
        old_logprobs_BT: Float[Tensor, "B T"],
        behavior_logprobs_BT: Float[Tensor, "B T"],
        loss_mask_BT: Bool[Tensor, "B T"],
    ) -> CorrectionResult:
        """Return the weights and what is left of the mask; arguments as for `Correction`."""
        gap_BT = behavior_gap(old_logprobs_BT, behavior_logprobs_BT, loss_mask_BT)
        kept_BT = loss_mask_BT & ~self.outside(gap_BT, loss_mask_BT)
        return correction_result(
            importance_weights(gap_BT, self.weights),
            kept_BT,
            gap_BT=gap_BT,
            loss_mask_BT=loss_mask_BT,
            truncated_BT=torch.zeros_like(kept_BT),
        )


def outside_ratios(log_ratios: Float[Tensor, "..."], low: float, high: float) -> Bool[Tensor, "..."]:
    """Return where a ratio, given by its logarithm, leaves [low, high]."""
    return (log_ratios < (math.log(low) if low > 0 else -math.inf)) | (log_ratios > math.log(high))


def row_means(values_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B 1"]:
    """Return the mean over the trained tokens of each row; 0 for a row without one. Values are 0 under the mask."""
    return values_BT.sum(dim=-1, keepdim=True) / loss_mask_BT.sum(dim=-1, keepdim=True).clamp(min=1)
