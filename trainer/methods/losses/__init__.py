"""Losses per token, and the one reduction to a scalar.

A loss is a pure function of log-probabilities, advantages and a mask; it knows neither model nor optimizer.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from envgym.trainer.methods.losses.aggregate import Aggregation, Denominator, aggregate, denominator_of
from envgym.trainer.methods.losses.base import LossStats, PolicyLoss, TokenLoss
from envgym.trainer.methods.losses.entropy import entropy_bonus
from envgym.trainer.methods.losses.kl import KlEstimator, kl_to_reference
from envgym.trainer.methods.losses.ppo_clip import PpoClip
from envgym.trainer.methods.losses.reinforce import Reinforce

LOSSES: Final[Mapping[str, Callable[..., PolicyLoss]]] = MappingProxyType({"ppo_clip": PpoClip, "reinforce": Reinforce})
"""Name -> class: a frozen settings model whose keyword arguments are the loss's settings."""

__all__ = [
    "LOSSES",
    "Aggregation",
    "Denominator",
    "KlEstimator",
    "LossStats",
    "PolicyLoss",
    "PpoClip",
    "Reinforce",
    "TokenLoss",
    "aggregate",
    "denominator_of",
    "entropy_bonus",
    "kl_to_reference",
]
