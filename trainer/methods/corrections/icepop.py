"""IcePop: token weights within a range."""

from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from envgym.trainer.methods.corrections.base import WeightLevel
from envgym.trainer.methods.corrections.rejection import Rejection, outside_ratios


class IcePop(Rejection):
    """Weigh a token with its importance ratio, and reject it where that leaves a range.

    With ρ = π_old/π_behavior: w_t = ρ_t where low ≤ ρ_t ≤ high, else 0. Unlike a cap, this also lets go of tokens that
    the sampler found likely and the trainer does not.

    Source: 2510.18855.
    """

    low: float = Field(default=0.5, ge=0, le=1)
    """Least ratio of a token that trains."""
    high: float = Field(default=5.0, ge=1)
    """Largest ratio of a token that trains."""
    weights: WeightLevel = WeightLevel.TOKEN
    """Each token's own ratio, its row's, or none: rejection alone."""

    def outside(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
        """Return which tokens' ratios leave the range."""
        del loss_mask_BT
        return outside_ratios(gap_BT, self.low, self.high)
