"""Drop groups whose episodes all got the same reward."""

from collections.abc import Sequence

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import FilterResult

TOLERANCE = 1e-9
"""Rewards closer than this are one reward; sums of rounded turn rewards differ by less."""


class ZeroVariance(Settings):
    """Keep groups with at least two different rewards. Source: dynamic sampling of 2503.14476 (DAPO).

    Others in place of the dropped groups are the collector's matter (`resampling.rounds`).
    """

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        """Split the groups."""
        kept: list[Group] = []
        dropped: list[tuple[Group, str]] = []
        for group in groups:
            rewards = episode_rewards(group)
            if not rewards:
                dropped.append((group, "no_valid_episode"))
            elif max(rewards) - min(rewards) <= TOLERANCE:
                dropped.append((group, "zero_variance"))
            else:
                kept.append(group)
        return FilterResult(tuple(kept), tuple(dropped))
