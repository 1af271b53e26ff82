"""Wrappers: each changes one thing about an env and passes the rest through, typed records and `fork` included."""

from envgym.wrappers.base import AnyEnv, TextOnly, Wrapper
from envgym.wrappers.chaining import DependentHorizon, Horizon, TryAgain
from envgym.wrappers.faults import Faults
from envgym.wrappers.forced_answer import ForcedAnswer
from envgym.wrappers.limits import TimeLimit, TurnLimit
from envgym.wrappers.prompts import GivenHint, PromptVariants, SkillContext
from envgym.wrappers.record import Record
from envgym.wrappers.subgoals import SubgoalRewards
from envgym.wrappers.subproblems import Subproblems

__all__ = [
    "AnyEnv",
    "DependentHorizon",
    "Faults",
    "ForcedAnswer",
    "GivenHint",
    "Horizon",
    "PromptVariants",
    "Record",
    "SkillContext",
    "SubgoalRewards",
    "Subproblems",
    "TextOnly",
    "TimeLimit",
    "TryAgain",
    "TurnLimit",
    "Wrapper",
]
