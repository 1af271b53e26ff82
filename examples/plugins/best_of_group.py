"""A credit: which advantage each episode of a group gets.

    envgym train run.yaml --set credit.name=examples/plugins/best_of_group.py:BestOfGroup --set credit.bonus=0.5

A credit takes a group (episodes of one task) and returns one `TrajectoryCredit` per valid episode. Its settings are the
fields of the class; `whole_episode` gives every sampled token of an episode the same advantage.
"""

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import episode_credits, episode_rewards
from envgym.trainer.methods.protocols import TrajectoryCredit


class BestOfGroup(Settings):
    """Reinforce the best episodes only: A_i = bonus where r_i is the group's largest reward and not all are, else 0."""

    bonus: float = Field(default=1.0, gt=0)
    """Advantage of the best."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        rewards = episode_rewards(group)
        has_spread = len(set(rewards)) > 1
        return episode_credits(
            group.valid, [self.bonus * (has_spread and reward == max(rewards)) for reward in rewards]
        )
