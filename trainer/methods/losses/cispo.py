"""CISPO: a bounded importance weight in place of a clipped objective."""

from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import (
    LossBatch,
    TokenLoss,
    log_ratio,
    masked_advantages,
    weighted_likelihood,
)
from envgym.trainer.methods.tensors import masked_sum


class Cispo(Settings):
    """Weight the policy gradient by the bounded ratio, so that no token loses its gradient.

    With ρ = π/π_old (its logarithm clamped to ±20): l = -A sg(clip(ρ, 1 - clip_low, 1 + clip_high)) log π.
    Without a lower bound, the default, it is the loss of ScaleRL; the share of weights that were bounded is measured as
    `capped`. Source: 2506.13585 (MiniMax-M1), 2510.13786 (ScaleRL).
    """

    clip_low: float = Field(default=1.0, ge=0, le=1)
    """How far below 1 the weight may fall; 1 = no lower bound."""
    clip_high: float = Field(default=4.0, ge=0)
    """How far above 1 the weight may rise."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        mask_BT = batch.loss_mask_BT
        ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT).detach().exp()
        weights_BT = ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high)
        losses_BT = weighted_likelihood(batch, weights_BT, masked_advantages(batch.advantages_BT, mask_BT))
        return TokenLoss(
            losses_BT=losses_BT, sums={"capped": masked_sum((weights_BT != ratio_BT).to(ratio_BT.dtype), mask_BT)}
        )
