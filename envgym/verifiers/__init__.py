"""Verifiers: one method of judging an answer per file, and the table of them."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.verifiers.base import Verdict, Verifier, right, wrong
from envgym.verifiers.choice import MultipleChoice
from envgym.verifiers.exact import Exact
from envgym.verifiers.f1 import F1
from envgym.verifiers.json_schema import JsonSchema
from envgym.verifiers.math import Math
from envgym.verifiers.numeric import Numeric, Take
from envgym.verifiers.pattern import Pattern

TABLE: Mapping[str, type[Verifier]] = MappingProxyType(
    {
        "exact": Exact,
        "numeric": Numeric,
        "choice": MultipleChoice,
        "f1": F1,
        "pattern": Pattern,
        "json_schema": JsonSchema,
        "math": Math,
    }
)
"""Name -> class."""

__all__ = [
    "F1",
    "TABLE",
    "Exact",
    "JsonSchema",
    "Math",
    "MultipleChoice",
    "Numeric",
    "Pattern",
    "Take",
    "Verdict",
    "Verifier",
    "right",
    "wrong",
]
