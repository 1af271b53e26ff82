"""PURE: the return of an episode is a soft minimum of its turn rewards, not their sum."""

import math
from collections.abc import Sequence

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import leave_one_out
from envgym.trainer.methods.credit.paths import discounted_returns, turn_credit, turn_rewards
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit


class MinForm(GroupCredit):
    """Credit the worst turn: A_{i,t} = Σ_{k >= t} r*_{i,k} - mean_{j != i} Σ_k r*_{j,k}, r*_k = softmax(-r/T)_k r_k.

    The r* of an episode sum to a soft minimum of its turn rewards, so that many good turns do not outweigh a bad one,
    and turns after the worst are not blamed for it. Episodes of one turn get RLOO's advantages. A group of one gets 0.

    Source: 2504.15275. Deviation: turns instead of tokens, and the leave-one-out mean of whole episodes as the
    baseline, where the authors' code scales a mean per token by the length of the step.
    """

    temperature: float = Field(default=0.1, gt=0)
    """T: the lower, the nearer to the minimum."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        returns = [discounted_returns(soft_minimum(turn_rewards(episode), self.temperature)) for episode in group.valid]
        wholes = [of_turns[0] if of_turns else 0.0 for of_turns in returns]
        advantages = leave_one_out(wholes)
        if len(returns) < 2:
            returns = [[whole] * len(of_turns) for whole, of_turns in zip(wholes, returns, strict=True)]
        return tuple(
            turn_credit(episode, [value - whole + advantage for value in of_turns])
            for episode, of_turns, whole, advantage in zip(group.valid, returns, wholes, advantages, strict=True)
        )


def soft_minimum(rewards: Sequence[float], temperature: float) -> list[float]:
    """Return softmax(-r/T)_k r_k for every k; their sum is min r up to terms of T."""
    least = min(rewards, default=0.0)
    weights = [math.exp((least - reward) / temperature) for reward in rewards]
    return [weight / sum(weights) * reward for weight, reward in zip(weights, rewards, strict=True)]
