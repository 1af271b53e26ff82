"""Losses per token, and their reduction to a scalar.

A loss is a pure function of log-probabilities, advantages and a mask; it knows neither model nor optimizer.
"""

from envgym.trainer.methods.losses.aggregate import (
    Aggregation,
    Denominator,
    PromptMean,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
)
from envgym.trainer.methods.losses.base import LossBatch, LossStats, PolicyLoss, TokenLoss
from envgym.trainer.methods.losses.entropy import Entropy
from envgym.trainer.methods.losses.kl import KlEstimator, kl_to_reference
from envgym.trainer.methods.losses.kl_reference import KlToReference
from envgym.trainer.methods.losses.nll import NegativeLogLikelihood
from envgym.trainer.methods.losses.ppo_clip import PpoClip
from envgym.trainer.methods.losses.reinforce import Reinforce

__all__ = [
    "Aggregation",
    "Denominator",
    "Entropy",
    "KlEstimator",
    "KlToReference",
    "LossBatch",
    "LossStats",
    "NegativeLogLikelihood",
    "PolicyLoss",
    "PpoClip",
    "PromptMean",
    "Reinforce",
    "SeqMeanTokenMean",
    "SeqMeanTokenSum",
    "SeqMeanTokenSumNorm",
    "TokenLoss",
    "TokenMean",
    "TokenSum",
    "kl_to_reference",
]
