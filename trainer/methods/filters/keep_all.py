"""Keep every group that has a valid episode."""

from collections.abc import Sequence

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.protocols import FilterResult


class KeepAll(Settings):
    """Drop only groups without a valid episode: there is nothing to learn from."""

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        """Split the groups."""
        return FilterResult.split(groups, [None if group.valid else "no_valid_episode" for group in groups])
