"""Curricula: which tasks come next."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import Curriculum

CURRICULA: Final[Mapping[str, Callable[..., Curriculum]]] = MappingProxyType({"uniform": Uniform})
"""Name -> class; keyword arguments are the method's settings."""
