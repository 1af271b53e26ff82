"""Filters: which groups are worth a gradient, with a reason for every one that is dropped."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from envgym.trainer.filters.keep_all import KeepAll
from envgym.trainer.filters.top_variance import TopVariance
from envgym.trainer.filters.zero_variance import ZeroVariance
from envgym.trainer.points import Filter

FILTERS: Final[Mapping[str, Callable[..., Filter]]] = MappingProxyType(
    {"keep_all": KeepAll, "zero_variance": ZeroVariance, "top_variance": TopVariance}
)
"""Name -> class; keyword arguments are the method's settings."""
