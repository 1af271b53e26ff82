"""Filters by how much the rewards of a group differ."""

import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import FilterResult

TOLERANCE = 1e-9
"""Rewards closer than this are one reward; sums of rounded turn rewards differ by less."""


class KeepAll(Settings):
    """Drop only groups without a valid episode: there is nothing to learn from."""

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        """Split the groups."""
        return FilterResult.split(groups, [None if group.valid else "no_valid_episode" for group in groups])


class ZeroVariance(Settings):
    """Keep groups with at least two different rewards. Source: dynamic sampling of 2503.14476 (DAPO).

    Others in place of the dropped groups are the collector's matter (`resampling.rounds`).
    """

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        """Split the groups."""
        return FilterResult.split(groups, [_why_dropped(episode_rewards(group)) for group in groups])


def _why_dropped(rewards: Sequence[float]) -> str | None:
    if not rewards:
        return "no_valid_episode"
    return "zero_variance" if max(rewards) - min(rewards) <= TOLERANCE else None


class TopVariance(Settings):
    """Rank groups by the spread s of their rewards and keep the first. Source: 2504.20073 (StarPO-S), RAGEN-2.

    By `count`: share x the number of groups, at least one. By `mass`: as few as hold share x Σ s (the authors' code
    keeps nothing where rounding hides that the sum is reached; here the sum is always reached). Groups without any
    spread are never kept.
    """

    share: float = Field(default=0.25, gt=0, le=1)
    """Of the groups with some spread, or of its sum."""
    by: Literal["count", "mass"] = "count"
    """What the share is of."""

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        """Split the groups."""
        spreads = [spread(group) for group in groups]
        ranked = sorted((n for n, s in enumerate(spreads) if s > TOLERANCE), key=lambda n: (-spreads[n], n))
        kept = set(ranked[: self._count([spreads[n] for n in ranked])])
        reasons = [None if n in kept else _reason(group, spreads[n]) for n, group in enumerate(groups)]
        return FilterResult.split(groups, reasons)

    def _count(self, ranked: Sequence[float]) -> int:
        """Return how many of the groups are kept, given their spreads in falling order."""
        if self.by == "count":
            return max(1, int(self.share * len(ranked)))
        wanted, held = self.share * sum(ranked) - TOLERANCE, 0.0
        for count, value in enumerate(ranked, start=1):
            held += value
            if held >= wanted:
                return count
        return len(ranked)


def spread(group: Group) -> float:
    """Return the unbiased deviation of a group's rewards; 0 for fewer than two valid episodes."""
    rewards = episode_rewards(group)
    return statistics.stdev(rewards) if len(rewards) > 1 else 0.0


def _reason(group: Group, value: float) -> str:
    if not group.valid:
        return "no_valid_episode"
    return "low_variance" if value > TOLERANCE else "zero_variance"
