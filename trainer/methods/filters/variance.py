"""Filters by how much the rewards of a group differ."""

import statistics
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import CriticCredit, FilterResult
from envgym.trainer.methods.requirements import Choices, Fault

TOLERANCE = 1e-9
"""Rewards closer than this are one reward; sums of rounded turn rewards differ by less."""


class KeepAll(Settings):
    """Drop only groups without a valid episode: there is nothing to learn from."""

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        return FilterResult.split(groups, [None if group.valid else "no_valid_episode" for group in groups])


class RewardVariance(Settings):
    """Settings of a filter that drops groups whose rewards are equal."""

    drops_equal_rewards: ClassVar[bool] = True
    rewards: Literal["shaped", "env"] = "shaped"
    """Which rewards are compared: those that train, after `shaping`, or those of the env before it."""

    def requires(self, choices: Choices) -> Fault | None:
        """Require several episodes per group, as a group of one is always dropped, or an allocator that adds some."""
        holds = choices.rollout.group_size > 1 or choices.allocator is not None
        must = f"be at least 2 with filter {choices.names['filter']}, which drops groups with zero reward variance"
        return Fault.unless(holds, "rollout.group_size", must, 1, "raise it, or set filter.name=keep_all")


class ZeroVariance(RewardVariance):
    """Keep groups with at least two different rewards. Source: dynamic sampling of 2503.14476 (DAPO).

    Others in place of the dropped groups are the collector's matter (`resampling.rounds`). The paper compares accuracy,
    without the length penalty that trains (`rewards: env`).
    """

    def requires(self, choices: Choices) -> Fault | None:
        """Require a credit without a critic, which must learn the value of tasks that always or never succeed."""
        if not isinstance(choices.credit, CriticCredit):
            return super().requires(choices)
        must = "keep groups with zero reward variance for a credit with a critic, which must learn their values"
        return Fault("filter", must, choices.names["filter"], "set filter.name=keep_all")

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        return FilterResult.split(groups, [_why_dropped(episode_rewards(group)) for group in groups])


def _why_dropped(rewards: Sequence[float]) -> str | None:
    if not rewards:
        return "no_valid_episode"
    return "zero_variance" if max(rewards) - min(rewards) <= TOLERANCE else None


class TopVariance(RewardVariance):
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
        spreads = [spread(group) for group in groups]
        ranked = sorted((n for n, s in enumerate(spreads) if s > TOLERANCE), key=lambda n: (-spreads[n], n))
        remaining = set(ranked[: self._count([spreads[n] for n in ranked])])
        reasons = [None if n in remaining else _reason(group, spreads[n]) for n, group in enumerate(groups)]
        return FilterResult.split(groups, reasons)

    def _count(self, ranked: Sequence[float]) -> int:
        """Return how many of the groups are kept, given their spreads in falling order."""
        if self.by == "count":
            return max(1, int(self.share * len(ranked)))
        target, total = self.share * sum(ranked) - TOLERANCE, 0.0
        for count, value in enumerate(ranked, start=1):
            total += value
            if total >= target:
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
