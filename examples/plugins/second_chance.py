"""An allocator: how many episodes a group gets while it is under way, and which of them train.

    envgym train run.yaml --set allocator.name=examples/plugins/second_chance.py:SecondChance --set allocator.extra=2

`extend` sees the trees that have ended and returns a request for more, or None; `rollout.max_group_size` is a bound in
any case. `finish` returns the group as it trains.
"""

from dataclasses import replace

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import TaskRequest


class SecondChance(Settings):
    """Extend a group whose episodes all earned the same, once; all of its episodes train."""

    extra: int = Field(default=4, ge=1)
    """Episodes that are added."""

    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        """Return a request for more episodes; None: the group has enough."""
        is_flat = len(set(episode_rewards(group))) < 2
        return replace(request, group_size=self.extra) if is_flat and round == 0 else None

    def finish(self, request: TaskRequest, group: Group) -> Group:
        """Return the whole group."""
        return group
