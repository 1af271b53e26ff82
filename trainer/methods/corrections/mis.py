"""Masked importance sampling."""

from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from envgym.trainer.methods.corrections.base import WeightLevel
from envgym.trainer.methods.corrections.rejection import Rejection, outside_ratios


class Mis(Rejection):
    """Reject rows whose importance ratio leaves a range, and weigh the others with theirs.

    With ρ = π_old/π_behavior: w = ∏_t ρ_t where low ≤ ∏_t ρ_t ≤ high, else the row stops training. A product grows with
    its row, so long rows are rejected more often; `geometric` judges them by their mean.

    Source: https://richardli.xyz/rl-collapse (sequence level).
    """

    low: float = Field(default=0.5, ge=0, le=1)
    """Least ratio of a row that trains."""
    high: float = Field(default=2.0, ge=1)
    """Largest ratio of a row that trains."""
    weights: WeightLevel = WeightLevel.SEQUENCE
    """The row's ratio, each token's own (uncapped), or none: rejection alone."""

    def outside(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Bool[Tensor, "B 1"]:
        """Return whose rows' products leave the range."""
        del loss_mask_BT
        return outside_ratios(gap_BT.sum(dim=-1, keepdim=True), self.low, self.high)
