"""GRPO: the episode's reward, standardised within its group."""

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_credits, episode_rewards, standardised
from envgym.trainer.methods.protocols import TrajectoryCredit


class Grpo(Settings):
    """Standardise rewards: A_i = (r_i - mean r) / (std r + 1e-6), std unbiased. Source: 2402.03300.

    Each group's advantages sum to 0; a group of one episode gets 0. The division makes the gradient biased
    towards tasks with little spread (2503.20783): `dr_grpo` leaves it out.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        return episode_credits(group.valid, standardised(episode_rewards(group)))
