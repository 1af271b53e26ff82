"""OPO: the baseline that makes the variance least where longer episodes have longer gradients."""

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_credits, episode_rewards
from envgym.trainer.methods.protocols import TrajectoryCredit


class Opo(Settings):
    """Subtract the length-weighted mean: A_i = r_i - Σ l_j r_j / Σ l_j, l the sampled tokens. Source: 2505.23585.

    The length-weighted advantages sum to 0; with episodes of equal length it is Dr. GRPO. A group of one gets 0.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        rewards = episode_rewards(group)
        lengths = [episode.num_sampled for episode in group.valid]
        weighted = sum(length * reward for length, reward in zip(lengths, rewards, strict=True))
        baseline = weighted / max(sum(lengths), 1)
        return episode_credits(group.valid, [reward - baseline for reward in rewards])
