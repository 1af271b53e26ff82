"""Filters: which groups are worth a gradient, with a reason for every one that is dropped."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from envgym.trainer.methods.filters.keep_all import KeepAll
from envgym.trainer.methods.filters.top_variance import TopVariance
from envgym.trainer.methods.filters.zero_variance import ZeroVariance
from envgym.trainer.methods.protocols import Filter

FILTERS: Final[Mapping[str, Callable[..., Filter]]] = MappingProxyType(
    {"keep_all": KeepAll, "zero_variance": ZeroVariance, "top_variance": TopVariance}
)
"""Name -> class; keyword arguments are the method's settings."""
