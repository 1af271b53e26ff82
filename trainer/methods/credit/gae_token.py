"""Token-level GAE over the sampled tokens of all turns."""

from collections.abc import Sequence

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.gae import CriticTurn, GaeSettings, TurnEstimate, estimate_credits, gae
from envgym.trainer.methods.protocols import CriticCreditResult, TrajectoryValues


class GaeToken(GaeSettings):
    """Estimate over tokens: A_t = δ_t + γ λ A_{t+1}; a turn's reward stands on its last sampled token.

    Observations are skipped: the token after the last one of a turn is the first of the next. Source: 1506.02438.
    """

    def estimate_advantages(self, group: Group, values: Sequence[TrajectoryValues]) -> tuple[CriticCreditResult, ...]:
        """Return the credit of every valid episode, with the value targets."""
        return estimate_credits(group, values, self._estimate)

    def _estimate(self, turns: Sequence[CriticTurn]) -> list[TurnEstimate]:
        rewards = [reward for item in turns for reward in (*[0.0] * (len(item.values) - 1), item.reward)]
        values = [value for item in turns for value in item.values]
        advantages = gae(rewards, values, discount=self.discount, decay=self.decay)
        targets = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
        return [TurnEstimate(tuple(advantages), tuple(targets))]
