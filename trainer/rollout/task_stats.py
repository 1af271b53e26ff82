"""What training has seen of each task."""

from collections.abc import Mapping, Sequence

from envgym.core.trajectory import Group
from envgym.core.turns import Scored
from envgym.trainer.methods.protocols import TaskRequest, TaskStats

Stats = Mapping[tuple[str, int], TaskStats]
"""(env, task index) -> what was seen."""


def updated_stats(stats: Stats, requests: Sequence[TaskRequest], groups: Sequence[Group], *, step: int) -> Stats:
    """Return the task statistics with this step's valid episodes added."""
    found = dict(stats)
    for request, group in zip(requests, groups, strict=True):
        key = (request.env, request.index)
        old = found.get(key, TaskStats(0, 0.0, 0.0, step))
        values = [reward.value for episode in group.valid if isinstance(reward := episode.reward, Scored)]
        found[key] = TaskStats(
            attempts=old.attempts + len(values),
            rewards=old.rewards + sum(values),
            squares=old.squares + sum(value * value for value in values),
            last_step=step,
        )
    return found
