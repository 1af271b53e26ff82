"""Corrections for samples drawn by another engine or an older policy than the one that trains."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from envgym.trainer.corrections.base import Correction, CorrectionResult, CorrectionStats
from envgym.trainer.corrections.none import NoCorrection
from envgym.trainer.corrections.tis import Tis, TisLevel

CORRECTIONS: Final[Mapping[str, Callable[..., Correction]]] = MappingProxyType({"none": NoCorrection, "tis": Tis})
"""Name -> class: a frozen settings model whose keyword arguments are the correction's settings."""

__all__ = [
    "CORRECTIONS",
    "Correction",
    "CorrectionResult",
    "CorrectionStats",
    "NoCorrection",
    "Tis",
    "TisLevel",
]
