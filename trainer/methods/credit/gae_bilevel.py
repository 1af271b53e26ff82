"""Bi-level GAE: over turns first, then over the tokens inside each turn."""

from collections.abc import Sequence

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.gae import CriticTurn, GaeSettings, TurnEstimate, estimate_credits, gae
from envgym.trainer.methods.protocols import CriticCreditResult, TrajectoryValues


class GaeBilevel(GaeSettings):
    """Estimate twice: A_k over turns with the values V(e_k) at their last tokens; then over each turn's tokens.

    Inside turn k the last token is paid u_k = A_k + V(e_k) instead of a reward, and nothing follows it. Turn ends are
    data: a turn that paid 0 ends as well (in the authors' code it melts into the next one, and a last turn that paid 0
    is an error). The authors' whitening over the batch is left out. With one token per turn this is `gae_turn`.

    Source: 2510.16907 (VAGEN).
    """

    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """Of what later turns pay, per turn."""

    def estimate_advantages(self, group: Group, values: Sequence[TrajectoryValues]) -> tuple[CriticCreditResult, ...]:
        """Return the credit of every valid episode, with the value targets."""
        return estimate_credits(group, values, self._estimate)

    def _estimate(self, turns: Sequence[CriticTurn]) -> list[TurnEstimate]:
        rewards = [turn.reward for turn in turns]
        lasts = [turn.values[-1] for turn in turns]
        of_turns = gae(rewards, lasts, discount=self.turn_discount, decay=self.decay)
        found: list[TurnEstimate] = []
        for (_, values), advantage, last in zip(turns, of_turns, lasts, strict=True):
            paid = [*[0.0] * (len(values) - 1), advantage + last]
            inner = gae(paid, values, discount=self.discount, decay=self.decay)
            targets = tuple(step + value for step, value in zip(inner, values, strict=True))
            found.append(TurnEstimate(tuple(inner), targets))
        return found
