"""MaxRL: rewards centred and divided by the group's mean, which maximises the likelihood of success."""

import statistics

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import EPSILON, centred, episode_credits, episode_rewards
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit


class MaxRl(GroupCredit):
    """Divide by the mean: A_i = (r_i - mean r) / (mean r + 1e-6), and 0 where the mean is not above 0.

    For rewards of 0 and 1 the mean is the rate of success p, and the expected gradient of a group of n is that of
    -Σ_{k<n} (1-p)^k / k: the first n - 1 terms of log p (2602.02710). Tasks that are seldom solved weigh
    more. Each group's advantages sum to 0; a group without a success gets 0, and so does a group of one.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        rewards = episode_rewards(group)
        mean = statistics.fmean(rewards) if rewards else 0.0
        scale = 1.0 / (mean + EPSILON) if mean > 0 else 0.0
        return episode_credits(group.valid, [scale * value for value in centred(rewards)])
