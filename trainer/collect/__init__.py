"""How the groups of a train step are collected."""

from envgym.trainer.collect.collector import Collected, Collector, collect
from envgym.trainer.collect.invalid import check_invalid
from envgym.trainer.collect.stats import Stats, updated_stats

__all__ = ["Collected", "Collector", "Stats", "check_invalid", "collect", "updated_stats"]
