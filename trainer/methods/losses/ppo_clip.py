"""PPO's clipped objective, with asymmetric bounds and an optional dual clip."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio, loss_stats, masked_advantages
from envgym.trainer.methods.requirements import Choices, Fault


class ClippedObjective(NamedTuple):
    """PPO's objective at some ratios."""

    losses_BT: Float[Tensor, "B T"]
    low_BT: Bool[Tensor, "B T"]
    """A < 0, and the ratio below its lower bound: no gradient."""
    high_BT: Bool[Tensor, "B T"]
    """A > 0, and the ratio above its upper bound: no gradient."""


def clipped_objective(
    ratio_BT: Float[Tensor, "B T"], advantages_BT: Float[Tensor, "B T"], *, clip_low: float, clip_high: float
) -> ClippedObjective:
    """Return max(-A ρ, -A clip(ρ, 1 - clip_low, 1 + clip_high)), and where it is clipped."""
    low, high = 1 - clip_low, 1 + clip_high
    return ClippedObjective(
        losses_BT=torch.maximum(-advantages_BT * ratio_BT, -advantages_BT * ratio_BT.clamp(low, high)),
        low_BT=(advantages_BT < 0) & (ratio_BT < low),
        high_BT=(advantages_BT > 0) & (ratio_BT > high),
    )


class PpoClip(Settings):
    """Bound how far one update can move the probability of a token.

    With ρ = π/π_old (its logarithm clamped to ±20):
        l = max(-A ρ, -A clip(ρ, 1 - clip_low, 1 + clip_high)); where A < 0 also l = min(l, -c A), c = dual_clip.

    Source: 1707.06347 (PPO), 1912.09729 (dual clip), 2503.14476 (asymmetric bounds).
    """

    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far below 1 the ratio may fall before a token with A < 0 stops training."""
    clip_high: float = Field(default=0.2, ge=0)
    """How far above 1 the ratio may rise before a token with A > 0 stops training."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound c on the ratio of tokens with A < 0; null: none."""

    def requires(self, choices: Choices) -> Fault | None:
        """Require a dual clip of the policy's loss above its clip, which else allows what the dual clip stops."""
        most, dual = 1 + self.clip_high, self.dual_clip
        if choices.loss is not self or dual is None or dual > most:
            return None
        must = f"be above 1 + clip_high ({most:g}), the largest ratio that the clip allows"
        return Fault("loss.dual_clip", must, f"{dual:g}", "raise it: 3 and 10 are usual")

    def __call__(self, batch: LossBatch) -> TokenLoss:
        log_ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, batch.loss_mask_BT)
        advantages_BT = masked_advantages(batch.advantages_BT, batch.loss_mask_BT)
        ratio_BT = log_ratio_BT.exp()
        clipped = clipped_objective(ratio_BT, advantages_BT, clip_low=self.clip_low, clip_high=self.clip_high)
        losses_BT = clipped.losses_BT
        clipped_dual_BT = None
        if self.dual_clip is not None:
            clipped_dual_BT = (advantages_BT < 0) & (ratio_BT > self.dual_clip)
            losses_BT = torch.where(clipped_dual_BT, -advantages_BT * self.dual_clip, losses_BT)
        stats = loss_stats(
            log_ratio_BT,
            batch.loss_mask_BT,
            clipped_low_BT=clipped.low_BT,
            clipped_high_BT=clipped.high_BT,
            clipped_dual_BT=clipped_dual_BT,
        )
        return TokenLoss(losses_BT=losses_BT, stats=stats)
