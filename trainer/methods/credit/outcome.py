"""What outcome-level methods share: one number per episode, put on every node of its path."""

import statistics
from collections.abc import Sequence

from envgym.core.trajectory import Group, Trajectory
from envgym.core.turns import Scored
from envgym.trainer.methods.protocols import TrajectoryCredit

EPSILON = 1e-6
"""Keeps equal rewards at advantage 0; small beside any spread of rewards worth training on."""


def episode_rewards(group: Group) -> list[float]:
    """Return the rewards of the group's valid episodes, in order."""
    return [reward.value for episode in group.valid if isinstance(reward := episode.reward, Scored)]


def episode_credits(episodes: Sequence[Trajectory], advantages: Sequence[float]) -> tuple[TrajectoryCredit, ...]:
    """Put one advantage on every sampled token of an episode."""
    return tuple(
        TrajectoryCredit(trajectory=episode, advantages=(0.0, *[advantage] * (len(episode.path) - 1)))
        for episode, advantage in zip(episodes, advantages, strict=True)
    )


def centred(rewards: Sequence[float]) -> list[float]:
    """Return r - mean r; the values sum to 0, and a single one is 0."""
    mean = statistics.fmean(rewards) if rewards else 0.0
    return [reward - mean for reward in rewards]


def standardised(rewards: Sequence[float]) -> list[float]:
    """Return (r - mean r) / (std r + 1e-6), std unbiased; the values sum to 0, and a single one is 0."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    deviation = statistics.stdev(rewards)
    return [difference / (deviation + EPSILON) for difference in centred(rewards)]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Return r_i - mean_{j != i} r_j; the values sum to 0, and a single one is 0."""
    others = len(rewards) - 1
    if others < 1:
        return [0.0] * len(rewards)
    total = sum(rewards)
    return [reward - (total - reward) / others for reward in rewards]
