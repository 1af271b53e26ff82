"""Turn-level GAE: one value and one advantage per turn."""

from collections.abc import Sequence
from typing import ClassVar

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.gae import CriticTurn, GaeSettings, TurnEstimate, estimate_credits, gae
from envgym.trainer.methods.protocols import CriticCreditResult, TrajectoryValues


class GaeTurn(GaeSettings):
    """Estimate over turns: δ_k = r_k + γ V_{k+1} - V_k, A_k = δ_k + γ λ A_{k+1}, on all tokens of turn k.

    V_k is the value before the turn's first sampled token, and only there does the critic learn A_k + V_k. A turn ends
    where the env replied, whatever it paid. With λ = 1 the gradient is unbiased for any critic.

    Source: 2510.16907 (VAGEN, the form with one value per turn); the estimator is 1506.02438.
    """

    trains_at_turn_ends: ClassVar[bool] = False

    def estimate_advantages(self, group: Group, values: Sequence[TrajectoryValues]) -> tuple[CriticCreditResult, ...]:
        """Return the credit of every valid episode, with the value targets."""
        return estimate_credits(group, values, self._estimate)

    def _estimate(self, turns: Sequence[CriticTurn]) -> list[TurnEstimate]:
        rewards = [turn.reward for turn in turns]
        firsts = [turn.values[0] for turn in turns]
        advantages = gae(rewards, firsts, discount=self.discount, decay=self.decay)
        return [
            TurnEstimate((advantage,) * len(turn.values), (advantage + first, *[None] * (len(turn.values) - 1)))
            for turn, first, advantage in zip(turns, firsts, advantages, strict=True)
        ]
