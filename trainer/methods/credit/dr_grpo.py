"""Dr. GRPO: the episode's reward less the group's mean."""

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import centred, episode_credits, episode_rewards
from envgym.trainer.methods.protocols import TrajectoryCredit


class DrGrpo(Settings):
    """Centre rewards: A_i = r_i - mean r, no division by the spread. Source: 2503.20783.

    The paper's other half, a constant instead of the row's length under the sum of token losses, is the
    aggregation `seq-mean-token-sum-norm`. Each group's advantages sum to 0.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        return episode_credits(group.valid, centred(episode_rewards(group)))
