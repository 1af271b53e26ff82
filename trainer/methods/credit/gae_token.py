"""Token-level GAE over the sampled tokens of all turns."""

from collections.abc import Sequence

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.gae import Decision, Estimate, GaeSettings, gae, judged
from envgym.trainer.methods.protocols import CriticCreditResult, TrajectoryValues


class GaeToken(GaeSettings):
    """Estimate over tokens: A_t = δ_t + γ λ A_{t+1}; a turn's reward stands on its last sampled token.

    Observations are skipped: the token behind the last one of a turn is the first of the next. Source: 1506.02438.
    """

    def estimate_advantages(self, group: Group, values: Sequence[TrajectoryValues]) -> tuple[CriticCreditResult, ...]:
        """Return the credit of every valid episode, and what the critic should have said."""
        return judged(group, values, self._estimate)

    def _estimate(self, decisions: Sequence[Decision]) -> list[Estimate]:
        rewards = [reward for item in decisions for reward in (*[0.0] * (len(item.values) - 1), item.reward)]
        values = [value for item in decisions for value in item.values]
        advantages = gae(rewards, values, discount=self.discount, decay=self.decay)
        targets = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
        return [Estimate(tuple(advantages), tuple(targets))]
