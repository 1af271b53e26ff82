"""Verifiers: one method of scoring an answer per file."""

from envgym.verifiers.base import Verdict, Verifier, right, wrong
from envgym.verifiers.exact import Exact
from envgym.verifiers.extract import Take
from envgym.verifiers.f1 import F1
from envgym.verifiers.functions import RewardFunction
from envgym.verifiers.generative import GenerativeVerifier
from envgym.verifiers.json_schema import JsonSchema
from envgym.verifiers.llm_judge import LlmJudge, red_team_judge
from envgym.verifiers.math import Math
from envgym.verifiers.multiple_choice import MultipleChoice
from envgym.verifiers.noisy import Noisy
from envgym.verifiers.numeric import Numeric
from envgym.verifiers.pattern import Pattern
from envgym.verifiers.tool_call import ToolCallMatch

__all__ = [
    "F1",
    "Exact",
    "GenerativeVerifier",
    "JsonSchema",
    "LlmJudge",
    "Math",
    "MultipleChoice",
    "Noisy",
    "Numeric",
    "Pattern",
    "RewardFunction",
    "Take",
    "ToolCallMatch",
    "Verdict",
    "Verifier",
    "red_team_judge",
    "right",
    "wrong",
]
