"""RLOO: the episode's reward less the mean of the others."""

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_credits, episode_rewards, leave_one_out
from envgym.trainer.methods.protocols import TrajectoryCredit


class Rloo(Settings):
    """Leave one out: A_i = r_i - mean_{j != i} r_j = G/(G-1) (r_i - mean r). Source: 2402.14740.

    The baseline does not depend on the episode's own actions, so the gradient is unbiased. A group of one gets 0.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        return episode_credits(group.valid, leave_one_out(episode_rewards(group)))
