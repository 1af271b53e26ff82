"""Corrections that reject, each by its own rule, and weigh what is kept, uncapped."""

import math
from abc import abstractmethod
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Self

from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from envgym.config.plugins import Choice
from envgym.errors import sentence
from envgym.trainer.methods.corrections.base import GapCorrection, Weighed, WeightLevel, importance_weights
from envgym.trainer.methods.losses.kl import KL_ESTIMATOR

if TYPE_CHECKING:
    from envgym.trainer.methods.losses.kl import KlEstimator


class Rejection(GapCorrection):
    """Stop training on what the trainer and the sampler see too differently, and weigh the rest, uncapped.

    A rejected token has weight 0 and leaves every term of the loss; the denominators go on counting it, so that what
    is kept is not scaled up. Each row is judged by itself. A gap that is not a number is never rejected, so that it is
    seen.
    """

    weights: WeightLevel
    """How what is kept is weighed."""

    @property
    def only_masks(self) -> bool:
        """True without importance weights."""
        return self.weights is WeightLevel.NONE

    @abstractmethod
    def outside(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
        """Return the mask of rejected tokens, as [B, T] or as [B, 1] for whole rows.

        Args:
            gap_BT: [B, T] log ρ, 0 where the mask is False.
            loss_mask_BT: [B, T] bool, True = trains.
        """

    def weigh(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Weighed:
        kept_BT = loss_mask_BT & ~self.outside(gap_BT, loss_mask_BT)
        return Weighed(importance_weights(gap_BT, self.weights), kept_BT)


class Mis(Rejection):
    """Reject rows whose importance ratio leaves a range, and weight the others by theirs.

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


class IcePop(Rejection):
    """Weight a token by its importance ratio, and reject it where that leaves a range.

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


class Geometric(Rejection):
    """Reject rows whose mean importance ratio (geometric) leaves a range.

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
    add up. k3 penalises a token that is more probable under the trainer more than a less probable one.

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


def outside_ratios(log_ratios: Float[Tensor, "..."], low: float, high: float) -> Bool[Tensor, "..."]:
    """Return where a ratio, given by its logarithm, leaves [low, high]."""
    return (log_ratios < (math.log(low) if low > 0 else -math.inf)) | (log_ratios > math.log(high))


def row_means(values_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B 1"]:
    """Return the mean over the trained tokens of each row; 0 for a row without one. Values are 0 under the mask."""
    return values_BT.sum(dim=-1, keepdim=True) / loss_mask_BT.sum(dim=-1, keepdim=True).clamp(min=1)
