"""Rejection of rows by the geometric mean of their importance ratios."""

from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from envgym.trainer.methods.corrections.base import WeightLevel
from envgym.trainer.methods.corrections.rejection import Rejection, outside_ratios, row_means


class Geometric(Rejection):
    """Reject rows whose tokens are on average likelier or less likely to the trainer than to the sampler.

    With ρ = π_old/π_behavior: a row trains where low ≤ exp(mean_t log ρ_t) ≤ high, whatever its length. Gaps of both
    signs cancel; `divergence` does not let them. With `weights: token` this is Seq-Mask-TIS.

    Source: https://richardli.xyz/rl-collapse-3 (rejection), OpenRLHF (Seq-Mask-TIS).
    """

    low: float = Field(default=0.99, ge=0, le=1)
    """Least mean ratio of a row that trains."""
    high: float = Field(default=1.01, ge=1)
    """Largest mean ratio of a row that trains."""
    weights: WeightLevel = WeightLevel.NONE
    """None, each token's own ratio (uncapped), or its row's."""

    def outside(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Bool[Tensor, "B 1"]:
        """Return whose rows' means leave the range."""
        return outside_ratios(row_means(gap_BT, loss_mask_BT), self.low, self.high)
