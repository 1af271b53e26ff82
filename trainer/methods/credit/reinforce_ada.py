"""Reinforce-Ada's credit: the baseline is the success rate of all episodes that were drawn, kept or not."""

import math
from typing import Literal

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.allocators.base import Draws, draws_of, is_success
from envgym.trainer.methods.credit.outcome import EPSILON, episode_credits
from envgym.trainer.methods.protocols import TrajectoryCredit


class ReinforceAdaCredit(Settings):
    """Subtract the success rate p of all draws: A_i = r_i - p with r_i = 1 for a success, else 0.

    `norm=deviation` divides by √(p (1 - p)) + 1e-6, `norm=rate` by p + 1e-6: the gradient of log p, which the paper has
    and the authors' code has not. Without an allocator's record the draws are the group itself, and A is Dr. GRPO's
    advantage of rewards 0 and 1. The kept episodes' advantages need not sum to 0; they are 0 where all draws are alike.

    Source: 2510.04996.
    """

    norm: Literal["none", "deviation", "rate"] = "none"
    """What the difference to the success rate is divided by."""
    threshold: float = 0.7
    """An episode succeeds when its reward is above this; as in the allocator."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        successes = [float(is_success(episode, self.threshold)) for episode in group.valid]
        draws = draws_of(group) or Draws(len(successes), 0.0, int(sum(successes)))
        if not successes:
            return ()
        rate = draws.rate
        deviation = math.sqrt(rate * (1 - rate))
        divisor = {"none": 1.0, "deviation": deviation + EPSILON, "rate": rate + EPSILON}[self.norm]
        return episode_credits(group.valid, [(success - rate) / divisor for success in successes])
