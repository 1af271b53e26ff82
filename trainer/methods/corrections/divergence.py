"""Rejection by an estimate of the divergence between sampler and trainer."""

from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Self

from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from envgym.errors import sentence
from envgym.plugins import Choice
from envgym.trainer.catalog import KL_ESTIMATOR
from envgym.trainer.methods.corrections.base import WeightLevel
from envgym.trainer.methods.corrections.rejection import Rejection, row_means

if TYPE_CHECKING:
    from envgym.trainer.methods.losses.kl import KlEstimator


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

    estimator: Choice = Choice(name="k3")
    """Which estimate: `k2`, `k3`, or another that is never negative."""
    over: Over = Over.MEAN
    """Tokens, or rows by their sum, mean or maximum."""
    bound: float = Field(default=0.01, ge=0)
    """Largest estimate, in nats, of what trains."""
    weights: WeightLevel = WeightLevel.NONE
    """None, each token's own ratio (uncapped), or its row's."""

    @model_validator(mode="after")
    def _check_estimator(self) -> Self:
        if self.estimator.name == "k1":
            must, do = "be one that is never negative", "choose k2 or k3"
            raise ValueError(sentence("estimator", must, self.estimator.name, where="correction divergence", do=do))
        KL_ESTIMATOR.load(self.estimator.name)
        return self

    @cached_property
    def _estimator(self) -> "KlEstimator":
        return KL_ESTIMATOR.build(self.estimator)

    def outside(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Bool[Tensor, "B _"]:
        """Return which tokens or rows are above the bound."""
        estimates_BT = self._estimator(-gap_BT)  # 0 where nothing trains
        match self.over:
            case Over.TOKEN:
                return estimates_BT > self.bound
            case Over.SUM:
                return estimates_BT.sum(dim=-1, keepdim=True) > self.bound
            case Over.MEAN:
                return row_means(estimates_BT, loss_mask_BT) > self.bound
            case Over.MAX:
                return (estimates_BT > self.bound).any(dim=-1, keepdim=True)
