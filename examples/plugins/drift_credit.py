"""A credit of a whole batch that reads scores: episodes on which the policy has drifted far count less.

    envgym train run.yaml --set credit.name=examples/plugins/drift_credit.py:DriftCredit --set credit.bound=0.2

A credit with a method `assign` is given all groups of a step. What it names in `scores` is computed once before: here
the log-probs of the policy and of the run's reference (the policy as the run began), found in `context.scores` along
the path of every valid episode.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import episode_credits, episode_rewards, standardised
from envgym.trainer.methods.protocols import CreditContext, TrajectoryCredit, TrajectoryValues
from envgym.trainer.methods.scores import ScoreRequest


class DriftCredit(Settings):
    """Shrink GRPO's advantages by drift: A_i = z(r_i) min(1, bound / d_i), d_i the mean |log π - log π_ref| a token."""

    scores: ClassVar[tuple[ScoreRequest, ...]] = (
        ScoreRequest(name="now"),
        ScoreRequest(name="then", model="reference"),
    )
    bound: float = Field(default=0.2, gt=0)
    """Nats a token by which an episode may drift without a loss."""

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        """Return one credit per valid episode."""
        now, then = context.scores_of("now", groups), context.scores_of("then", groups)
        credits: list[TrajectoryCredit] = []
        for group, of_now, of_then in zip(groups, now, then, strict=True):
            drifts = [drift(one, other) for one, other in zip(of_now, of_then, strict=True)]
            advantages = standardised(episode_rewards(group))
            kept = [a * min(1.0, self.bound / max(d, 1e-9)) for a, d in zip(advantages, drifts, strict=True)]
            credits += episode_credits(group.valid, kept)
        return credits


def drift(now: TrajectoryValues, then: TrajectoryValues) -> float:
    """Return the mean distance of two log-probs over the sampled tokens of an episode."""
    pairs = zip(now.values, then.values, strict=True)
    gaps = [abs(one - other) for of_node in pairs for one, other in zip(*of_node, strict=True)]
    return sum(gaps) / max(len(gaps), 1)
