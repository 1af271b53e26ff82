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
from envgym.trainer.methods.losses.cispo import Cispo
from envgym.trainer.methods.losses.covariance import ClipCov, KlCov
from envgym.trainer.methods.losses.dhpo import Dhpo
from envgym.trainer.methods.losses.dppo import DppoKl, DppoTv
from envgym.trainer.methods.losses.dro import Dro
from envgym.trainer.methods.losses.entropy import Entropy
from envgym.trainer.methods.losses.gmpo import Gmpo
from envgym.trainer.methods.losses.gspo import Gspo
from envgym.trainer.methods.losses.kl import KlEstimator, kl_to_reference
from envgym.trainer.methods.losses.kl_reference import KlToReference
from envgym.trainer.methods.losses.nll import NegativeLogLikelihood
from envgym.trainer.methods.losses.ppo_clip import PpoClip
from envgym.trainer.methods.losses.real import Real
from envgym.trainer.methods.losses.reinforce import Reinforce
from envgym.trainer.methods.losses.sapo import Sapo
from envgym.trainer.methods.losses.siren import Siren
from envgym.trainer.methods.losses.topr import Topr

__all__ = [
    "Aggregation",
    "Cispo",
    "ClipCov",
    "Denominator",
    "Dhpo",
    "DppoKl",
    "DppoTv",
    "Dro",
    "Entropy",
    "Gmpo",
    "Gspo",
    "KlCov",
    "KlEstimator",
    "KlToReference",
    "LossBatch",
    "LossStats",
    "NegativeLogLikelihood",
    "PolicyLoss",
    "PpoClip",
    "PromptMean",
    "Real",
    "Reinforce",
    "Sapo",
    "SeqMeanTokenMean",
    "SeqMeanTokenSum",
    "SeqMeanTokenSumNorm",
    "Siren",
    "TokenLoss",
    "TokenMean",
    "TokenSum",
    "Topr",
    "kl_to_reference",
]
