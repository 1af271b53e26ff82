"""Wrappers: each changes one thing about an env and passes the rest through, typed records and `fork` included."""

from envgym.plugins import PluginKind as _PluginKind
from envgym.wrappers.base import AnyEnv as AnyEnv
from envgym.wrappers.base import Wrapper as Wrapper
from envgym.wrappers.faults import Faults as Faults
from envgym.wrappers.horizon import Horizon as Horizon
from envgym.wrappers.record import Record as Record
from envgym.wrappers.text_only import TextOnly as TextOnly
from envgym.wrappers.time_limit import TimeLimit as TimeLimit
from envgym.wrappers.try_again import TryAgain as TryAgain
from envgym.wrappers.turn_limit import TurnLimit as TurnLimit

WRAPPERS: _PluginKind[Wrapper] = _PluginKind(
    name="wrapper",
    protocols=("envgym.wrappers.base:Wrapper",),
    table={
        "horizon": "envgym.wrappers.horizon:Horizon",
        "record": "envgym.wrappers.record:Record",
        "text_only": "envgym.wrappers.text_only:TextOnly",
        "time_limit": "envgym.wrappers.time_limit:TimeLimit",
        "try_again": "envgym.wrappers.try_again:TryAgain",
        "turn_limit": "envgym.wrappers.turn_limit:TurnLimit",
    },
)
"""Wrappers that settings can name; each takes the env, then its settings."""
