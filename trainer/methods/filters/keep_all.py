"""Keep every group that has a valid episode."""

from collections.abc import Sequence

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.protocols import FilterResult


class KeepAll(Settings):
    """Drop only groups without a valid episode: there is nothing to learn from."""

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        """Split the groups."""
        return FilterResult(
            tuple(group for group in groups if group.valid),
            tuple((group, "no_valid_episode") for group in groups if not group.valid),
        )
