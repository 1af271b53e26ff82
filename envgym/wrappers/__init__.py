"""Wrappers: each changes one thing about an env and passes the rest through, typed records and `fork` included."""

from envgym.wrappers.base import AnyEnv as AnyEnv
from envgym.wrappers.base import Wrapper as Wrapper
from envgym.wrappers.faults import Faults as Faults
from envgym.wrappers.horizon import Horizon as Horizon
from envgym.wrappers.record import Record as Record
from envgym.wrappers.text_only import TextOnly as TextOnly
from envgym.wrappers.time_limit import TimeLimit as TimeLimit
from envgym.wrappers.try_again import TryAgain as TryAgain
from envgym.wrappers.turn_limit import TurnLimit as TurnLimit
