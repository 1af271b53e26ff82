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
        return FilterResult.split(groups, [_reason(episode_rewards(group)) for group in groups])


def _reason(rewards: Sequence[float]) -> str | None:
    if not rewards:
        return "no_valid_episode"
    return "zero_variance" if max(rewards) - min(rewards) <= TOLERANCE else None
