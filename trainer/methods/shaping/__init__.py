"""Shaping: rewards that training adds to those of the env, seen by credit alone.

Filters, statistics and metrics see what the env paid.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from envgym.trainer.methods.protocols import Shaping
from envgym.trainer.methods.shaping.none import NoShaping
from envgym.trainer.methods.shaping.overlong import Overlong

SHAPINGS: Final[Mapping[str, Callable[..., Shaping]]] = MappingProxyType({"none": NoShaping, "overlong": Overlong})
"""Name -> class; keyword arguments are the method's settings."""
