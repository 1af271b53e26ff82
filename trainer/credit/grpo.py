"""GRPO: the episode's reward, standardised within its group."""

import statistics

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.credit.outcome import episode_rewards, whole_episode
from envgym.trainer.points import TrajectoryCredit

EPSILON = 1e-6
"""Keeps a group of equal rewards at advantage 0; small beside any spread of rewards worth training on."""


class Grpo(Settings):
    """Standardise rewards: A_i = (r_i - mean r) / (std r + 1e-6), std unbiased. Source: 2402.03300.

    Each group's advantages sum to 0; a group of one episode gets 0. The division makes the gradient biased
    towards tasks with little spread (2503.20783): `dr_grpo` leaves it out.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        rewards = episode_rewards(group)
        if len(rewards) < 2:
            return whole_episode(group.valid, [0.0] * len(rewards))
        mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
        return whole_episode(group.valid, [(reward - mean) / (deviation + EPSILON) for reward in rewards])
