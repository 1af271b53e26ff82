"""Verifiers: one method of scoring an answer per file."""

from envgym.verifiers.base import Verdict, Verifier, right, wrong
from envgym.verifiers.exact import Exact
from envgym.verifiers.f1 import F1
from envgym.verifiers.functions import RewardFunction
from envgym.verifiers.json_schema import JsonSchema
from envgym.verifiers.math import Math
from envgym.verifiers.multiple_choice import MultipleChoice
from envgym.verifiers.numeric import Numeric, Take
from envgym.verifiers.pattern import Pattern

__all__ = [
    "F1",
    "Exact",
    "JsonSchema",
    "Math",
    "MultipleChoice",
    "Numeric",
    "Pattern",
    "RewardFunction",
    "Take",
    "Verdict",
    "Verifier",
    "right",
    "wrong",
]
