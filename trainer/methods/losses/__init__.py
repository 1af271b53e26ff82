"""Losses per token, and their reduction to a scalar.

A loss is a pure function of log-probabilities, advantages and a mask; it knows neither model nor optimizer.
"""

from envgym.trainer.methods.losses.aggregate import (
    Aggregation,
    Denominator,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
)
from envgym.trainer.methods.losses.base import LossStats, PolicyLoss, TokenLoss, entropy_bonus
from envgym.trainer.methods.losses.kl import KlEstimator, kl_to_reference
from envgym.trainer.methods.losses.ppo_clip import PpoClip
from envgym.trainer.methods.losses.reinforce import Reinforce

__all__ = [
    "Aggregation",
    "Denominator",
    "KlEstimator",
    "LossStats",
    "PolicyLoss",
    "PpoClip",
    "Reinforce",
    "SeqMeanTokenMean",
    "SeqMeanTokenSum",
    "SeqMeanTokenSumNorm",
    "TokenLoss",
    "TokenMean",
    "TokenSum",
    "entropy_bonus",
    "kl_to_reference",
]
