"""A run whose infrastructure fails is stopped before it trains on what is left."""

from collections.abc import Sequence

from envgym.core.trajectory import Group
from envgym.core.turns import Ending, Invalid
from envgym.errors import RunError, sentence


def check_invalid(groups: Sequence[Group], *, limit: float, step: int) -> None:
    """See that few episodes failed; those that a step went on without did not. Raises: RunError: above the limit."""
    episodes = [episode for group in groups for episode in group.trajectories]
    invalid = [episode.reward for episode in episodes if isinstance(episode.reward, Invalid)]
    reasons = [reward.reason for reward in invalid if reward.cause is not Ending.ERROR_ABORTED]
    if len(reasons) > limit * len(episodes):
        got = f"{len(reasons)} of {len(episodes)}, such as: {reasons[0]}"
        do = "mend the env or its services, then resume"
        raise RunError(sentence("invalid episodes", f"stay below {limit:.0%}", got, where=f"step {step}", do=do))
