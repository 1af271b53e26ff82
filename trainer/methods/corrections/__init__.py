"""Corrections for samples drawn by another engine or an older policy than the one that trains."""

from envgym.trainer.methods.corrections.base import (
    Correction,
    CorrectionResult,
    CorrectionStats,
    NoCorrection,
    WeightLevel,
)
from envgym.trainer.methods.corrections.rejection import Divergence, Geometric, IcePop, Mis, Rejection
from envgym.trainer.methods.corrections.tis import Tis, TisLevel

__all__ = [
    "Correction",
    "CorrectionResult",
    "CorrectionStats",
    "Divergence",
    "Geometric",
    "IcePop",
    "Mis",
    "NoCorrection",
    "Rejection",
    "Tis",
    "TisLevel",
    "WeightLevel",
]
