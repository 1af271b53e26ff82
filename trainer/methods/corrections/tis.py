"""Truncated importance sampling."""

from enum import StrEnum
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from envgym.trainer.methods.corrections.base import GapCorrection, Weighed, WeightLevel, importance_weights


class TisLevel(StrEnum):
    """What one importance weight covers."""

    TOKEN = "token"
    """Every token has its own; the mismatch of the tokens before it is ignored."""
    SEQUENCE = "sequence"
    """All trained tokens of a row share the product of theirs."""


class Tis(GapCorrection):
    """Weight a token by its truncated importance ratio: its probability under the trainer over the sampler's.

    With ρ = π_old/π_behavior (logarithms clamped to ±20): w = min(ρ_t, C), or min(∏_t ρ_t, C) for the whole row.
    The truncation bounds the variance and biases the gradient. Behavior log-probabilities must belong to the
    distribution that was sampled from, over the full vocabulary: a sampler's top-p or top-k is not undone here.

    Source: 1802.01561 (truncation), https://fengyao.notion.site/off-policy-rl (between engines).
    """

    only_masks: ClassVar[bool] = False
    level: TisLevel = TisLevel.TOKEN
    """One weight per token or per row."""
    cap: float = Field(default=2.0, gt=0)
    """C, the largest weight before normalisation."""
    normalize: bool = False
    """Divide by the mean weight after truncation (over trained tokens; at the level `sequence`, over rows), so that
    the mean weight of the batch is 1."""

    def weigh(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Weighed:
        """Return the truncated weights and the mask as it is."""
        ratio_BT = importance_weights(gap_BT, WeightLevel(self.level))
        weights_BT = ratio_BT.clamp(max=self.cap)
        if self.normalize:
            weights_BT = weights_BT / self._mean(weights_BT, loss_mask_BT)
        return Weighed(weights_BT, loss_mask_BT, truncated_BT=ratio_BT > self.cap)

    def _mean(self, weights_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
        """Return the mean weight over trained tokens or over rows that train; 1 where nothing trains."""
        shares_BT = loss_mask_BT.to(weights_BT.dtype)
        if self.level is TisLevel.SEQUENCE:
            shares_BT = shares_BT / shares_BT.sum(dim=-1, keepdim=True).clamp(min=1)
        total = shares_BT.sum()
        return torch.where(total > 0, (weights_BT * shares_BT).sum() / total, 1.0)
