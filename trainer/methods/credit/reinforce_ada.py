"""Reinforce-Ada's credit: the baseline is the success rate of all episodes that were drawn, kept or not."""

import math
from typing import ClassVar, Literal

from envgym.core.trajectory import Group
from envgym.trainer.methods.allocators.base import Draws, draws_of, is_success
from envgym.trainer.methods.credit.outcome import EPSILON, episode_credits
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit


class ReinforceAdaCredit(GroupCredit):
    """Subtract the success rate p of all draws: A_i = r_i - p with r_i = 1 for a success, else 0.

    `norm=deviation` divides by their deviation, unbiased, √(p (1 - p) N / (N - 1)) + 1e-6 with N draws, as the authors'
    code does. `norm=rate` divides by p + 1e-6: the gradient of log p, which is in the paper and not in the code.
    Without an allocator's record the draws are the group itself, and A is Dr. GRPO's advantage of rewards 0 and 1, or
    with `norm=deviation` GRPO's. The kept episodes' advantages need not sum to 0; they are 0 where all draws are alike.

    Source: 2510.04996.
    """

    reads_draws: ClassVar[bool] = True
    norm: Literal["none", "deviation", "rate"] = "none"
    """What the difference to the success rate is divided by."""
    threshold: float = 0.7
    """An episode succeeds when its reward is above this; as in the allocator."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        successes = [float(is_success(episode, self.threshold)) for episode in group.valid]
        draws = draws_of(group) or Draws(len(successes), 0.0, int(sum(successes)))
        if not successes:
            return ()
        rate, num_draws = draws.rate, draws.num_episodes
        deviation = math.sqrt(rate * (1 - rate) * num_draws / max(num_draws - 1, 1))
        divisor = {"none": 1.0, "deviation": deviation + EPSILON, "rate": rate + EPSILON}[self.norm]
        return episode_credits(group.valid, [(success - rate) / divisor for success in successes])
