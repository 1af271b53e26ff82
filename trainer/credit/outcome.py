"""What outcome-level methods share: one number per episode, put on every node of its path."""

from collections.abc import Sequence

from envgym.core.rewards import Scored
from envgym.core.trajectory import Group, Trajectory
from envgym.trainer.points import TrajectoryCredit


def episode_rewards(group: Group) -> list[float]:
    """Return the rewards of the group's valid episodes, in order."""
    return [reward.value for episode in group.valid if isinstance(reward := episode.reward, Scored)]


def whole_episode(episodes: Sequence[Trajectory], advantages: Sequence[float]) -> tuple[TrajectoryCredit, ...]:
    """Put one advantage on every sampled token of an episode."""
    return tuple(
        TrajectoryCredit(trajectory=episode, advantages=(0.0, *[advantage] * (len(episode.path) - 1)))
        for episode, advantage in zip(episodes, advantages, strict=True)
    )
