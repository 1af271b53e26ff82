"""Rejection by an estimate of the divergence between sampler and trainer."""

from enum import StrEnum
from typing import Literal

from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from envgym.trainer.methods.corrections.base import WeightLevel
from envgym.trainer.methods.corrections.rejection import Rejection, row_means
from envgym.trainer.methods.losses.kl import KL_ESTIMATORS, KlEstimator


class Over(StrEnum):
    """What a divergence is measured over, and with it what is rejected."""

    TOKEN = "token"
    """Each token by itself."""
    SUM = "sum"
    """A row, by the sum over its trained tokens."""
    MEAN = "mean"
    """A row, by their mean."""
    MAX = "max"
    """A row, by the largest: one token is enough."""


class Divergence(Rejection):
    """Reject tokens or rows at which an estimate of KL(π_behavior || π_old) is above a bound.

    With ρ = π_old/π_behavior, k2 = (log ρ)²/2 and k3 = ρ - 1 - log ρ. Neither is ever negative, so gaps of both signs
    add up. k3 punishes a token that the trainer finds likelier more than one that it finds less likely.

    Source: http://joschu.net/blog/kl-approx.html (the estimators), verl's rollout correction (as a bound).
    """

    estimator: Literal["k2", "k3"] = "k3"
    """Which estimate."""
    over: Over = Over.MEAN
    """Tokens, or rows by their sum, mean or maximum."""
    bound: float = Field(default=0.01, ge=0)
    """Largest estimate, in nats, of what trains."""
    weights: WeightLevel = WeightLevel.NONE
    """None, each token's own ratio (uncapped), or its row's."""

    def outside(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Bool[Tensor, "B _"]:
        """Return which tokens or rows are above the bound."""
        estimates_BT = KL_ESTIMATORS[KlEstimator(self.estimator)](-gap_BT)  # 0 where nothing trains
        match self.over:
            case Over.TOKEN:
                return estimates_BT > self.bound
            case Over.SUM:
                return estimates_BT.sum(dim=-1, keepdim=True) > self.bound
            case Over.MEAN:
                return row_means(estimates_BT, loss_mask_BT) > self.bound
            case Over.MAX:
                return (estimates_BT > self.bound).any(dim=-1, keepdim=True)
