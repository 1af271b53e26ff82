"""Credit by position: the k-th turns of a group's episodes are compared with each other."""

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import standardised
from envgym.trainer.methods.credit.paths import turn_credit, turn_rewards
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit


class MtGrpo(GroupCredit):
    """Add turn and outcome: A_{i,k} = z(r_{i,k}) + λ z(o_i) before the last turn, z(o_i) there; z as in GRPO.

    The outcome o_i is what the last turn paid; z(r_{i,k}) compares with the k-th turns of the group that are not last.
    Without turn rewards before the last, and with λ = 1, it is GRPO. Source: 2505.11821, of which more than one turn
    before the last is our reading.
    """

    outcome_weight: float = Field(default=1.0, ge=0)
    """Weight of the outcome in the turns before the last."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        rewards = [turn_rewards(episode) for episode in group.valid]
        outcomes = standardised([of_turns[-1] if of_turns else 0.0 for of_turns in rewards])
        inner = by_position([of_turns[:-1] for of_turns in rewards])
        return tuple(
            turn_credit(episode, [*(advantage + self.outcome_weight * outcome for advantage in of_turns), outcome])
            for episode, of_turns, outcome in zip(group.valid, inner, outcomes, strict=True)
        )


def by_position(rewards: list[list[float]]) -> list[list[float]]:
    """Standardise the k-th numbers of all lists that have one, for every k."""
    by_episode: list[list[float]] = [[] for _ in rewards]
    for position in range(max(map(len, rewards), default=0)):
        members = [number for number, of_turns in enumerate(rewards) if len(of_turns) > position]
        advantages = standardised([rewards[number][position] for number in members])
        for number, advantage in zip(members, advantages, strict=True):
            by_episode[number].append(advantage)
    return by_episode
