"""Reinforce-Ada's sequential sampling: draw until a group holds successes and failures, and train on a few of each."""

from typing import Literal

from pydantic import Field

from envgym.core.trajectory import Group, Trajectory
from envgym.trainer.methods.allocators.base import is_success, keep_episodes, with_draws
from envgym.trainer.methods.protocols import GroupSource, TaskRequest


class ReinforceAda(GroupSource):
    """Sample rounds of `rollout.group_size` episodes until the group can train, and keep n of them.

    With P successes and F failures so far, sampling ends after a round in which

        balanced            P >= ⌊n/2⌋ and F >= n - ⌊n/2⌋
        positive_focused    P >= 1

    or when `rounds` are used up. Kept are k successes and n - k failures, the first that were drawn: k = min(⌊n/2⌋, P)
    where the group ended balanced or never ended; of `positive_focused` k = ⌈n P / (P + F)⌉ within [1, n - 1]. What one
    of the two lacks, the other fills. The baseline of all draws is the credit's matter (`credit.name=reinforce_ada`).

    Source: 2510.04996, the authors' code, whose rounds are of 8 episodes, at most 4, with n = 4. Chains, or trees.
    """

    exit: Literal["balanced", "positive_focused"] = "balanced"
    """When sampling ends: with enough of both results, or with one success."""
    keep: int = Field(default=4, ge=2)
    """Number n of episodes that are kept."""
    rounds: int = Field(default=4, ge=1)
    """Most rounds, the first included."""
    threshold: float = 0.7
    """An episode succeeds when its reward is above this."""

    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        """Return another round, unless the group is done."""
        del step
        return None if round + 1 >= self.rounds or self._is_done(group) else request

    def finish(self, request: TaskRequest, group: Group) -> Group:
        """Return the group of n episodes, with the statistics of all."""
        del request
        successes, failures = self._split(group)
        total = len(successes) + len(failures)
        target = self.keep // 2
        if self.exit == "positive_focused" and successes:
            target = min(max(-(-self.keep * len(successes) // total), 1), self.keep - 1)
        num_successes = min(target, len(successes))
        num_failures = min(self.keep - num_successes, len(failures))
        num_successes = min(self.keep - num_failures, len(successes))
        remaining = keep_episodes(group, [*successes[:num_successes], *failures[:num_failures]])
        return with_draws(remaining, group, threshold=self.threshold)

    def _is_done(self, group: Group) -> bool:
        successes, failures = self._split(group)
        if self.exit == "positive_focused":
            return bool(successes)
        return len(successes) >= self.keep // 2 and len(failures) >= self.keep - self.keep // 2

    def _split(self, group: Group) -> tuple[list[Trajectory], list[Trajectory]]:
        """Return the successes and failures, in the order in which they were drawn."""
        successes = [episode for episode in group.valid if is_success(episode, self.threshold)]
        return successes, [episode for episode in group.valid if not is_success(episode, self.threshold)]
