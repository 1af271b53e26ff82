"""Bi-level GAE: over turns first, then over the tokens inside each turn."""

from collections.abc import Sequence

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.gae import Decision, Estimate, GaeSettings, gae, judged
from envgym.trainer.methods.protocols import CriticCreditResult, TrajectoryValues


class GaeBilevel(GaeSettings):
    """Estimate twice: A_k over turns with the values V(e_k) at their last tokens; then over each turn's tokens.

    Inside turn k the last token is paid u_k = A_k + V(e_k) in place of a reward, and nothing follows it. Turn ends are
    data: a turn that paid 0 ends as well (in the authors' code it melts into the next one, and a last turn that paid 0
    is an error). The authors' whitening over the batch is left out. With one token per turn this is `gae_turn`.

    Source: 2510.16907 (VAGEN).
    """

    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """Of what later turns pay, per turn."""

    def estimate_advantages(self, group: Group, values: Sequence[TrajectoryValues]) -> tuple[CriticCreditResult, ...]:
        """Return the credit of every valid episode, and what the critic should have said."""
        return judged(group, values, self._estimate)

    def _estimate(self, decisions: Sequence[Decision]) -> list[Estimate]:
        rewards = [decision.reward for decision in decisions]
        lasts = [decision.values[-1] for decision in decisions]
        of_turns = gae(rewards, lasts, discount=self.turn_discount, decay=self.decay)
        found: list[Estimate] = []
        for (_, values), advantage, last in zip(decisions, of_turns, lasts, strict=True):
            paid = [*[0.0] * (len(values) - 1), advantage + last]
            inner = gae(paid, values, discount=self.discount, decay=self.decay)
            targets = tuple(step + value for step, value in zip(inner, values, strict=True))
            found.append(Estimate(tuple(inner), targets))
        return found
