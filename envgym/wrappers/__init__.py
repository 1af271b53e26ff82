"""Wrappers: each changes one thing about an env and passes the rest through, typed records and `fork` included."""

from envgym.wrappers.base import AnyEnv, Wrapper
from envgym.wrappers.faults import Faults
from envgym.wrappers.horizon import Horizon
from envgym.wrappers.record import Record
from envgym.wrappers.text_only import TextOnly
from envgym.wrappers.time_limit import TimeLimit
from envgym.wrappers.try_again import TryAgain
from envgym.wrappers.turn_limit import TurnLimit

__all__ = ["AnyEnv", "Faults", "Horizon", "Record", "TextOnly", "TimeLimit", "TryAgain", "TurnLimit", "Wrapper"]
