"""Separate weights for positive and negative samples, without a baseline."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.core.turns import reaches
from envgym.trainer.methods.credit.outcome import episode_credits, episode_rewards
from envgym.trainer.methods.protocols import CreditContext, TrajectoryCredit


class PsrNsr(Settings):
    """Weigh the two signs: A = `positive` for a correct episode, -`negative` for a wrong one; no baseline.

    W-REINFORCE is 0.1 and 1, the default; PSR is 1 and 0, NSR 0 and 1. Episodes of a sign that weighs 0 are left out
    of the batch, so that no mean counts them; a batch without any other trains nothing. Source: 2506.01347.
    """

    trains_equal_rewards: ClassVar[bool] = True
    positive: float = Field(default=0.1, ge=0)
    """Advantage of a correct episode."""
    negative: float = Field(default=1.0, ge=0)
    """Minus the advantage of a wrong one."""
    success_at: float = 1.0
    """An episode is correct when its reward is at least this."""

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        """Return one credit per valid episode of a sign that weighs."""
        del context
        pairs = [
            (episode, self.positive if reaches(reward, self.success_at) else -self.negative)
            for group in groups
            for episode, reward in zip(group.valid, episode_rewards(group), strict=True)
        ]
        weighing = [(episode, advantage) for episode, advantage in pairs if advantage]
        return list(episode_credits([episode for episode, _ in weighing], [advantage for _, advantage in weighing]))
