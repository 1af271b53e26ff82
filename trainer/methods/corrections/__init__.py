"""Corrections for samples drawn by another engine or an older policy than the one that trains."""

from envgym.trainer.methods.corrections.base import Correction, CorrectionResult, CorrectionStats, WeightLevel
from envgym.trainer.methods.corrections.divergence import Divergence
from envgym.trainer.methods.corrections.geometric import Geometric
from envgym.trainer.methods.corrections.icepop import IcePop
from envgym.trainer.methods.corrections.mis import Mis
from envgym.trainer.methods.corrections.none import NoCorrection
from envgym.trainer.methods.corrections.rejection import Rejection
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
