"""Pass@k training: the advantage is an episode's contribution to the best of k."""

import math

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.core.turns import reaches
from envgym.trainer.methods.credit.outcome import EPSILON, episode_credits, episode_rewards
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit


class PassAtK(GroupCredit):
    """Standardise the best of k: the mean, over all sets of k episodes that hold this one, of z(best of the set).

    With c of n episodes correct, ρ = 1 - C(n-c, k)/C(n, k) is the share of sets with a correct one, σ² = ρ(1 - ρ):
    A = (1 - ρ)/(σ + 1e-6) for a correct episode, (1 - ρ - C(n-c-1, k-1)/C(n-1, k-1))/(σ + 1e-6) for a wrong one. With
    k = 1 that is GRPO with the deviation of the population. The advantages of a group sum to 0.

    Source: 2508.10751. Deviation: an episode is correct or wrong by `success_at`, where the authors' code takes rewards
    that are neither 0 nor 1 as advantages. A group with fewer than k valid episodes takes k = n.
    """

    k: int = Field(default=4, ge=1)
    """Episodes of a set."""
    success_at: float = 1.0
    """An episode is correct when its reward is at least this."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode; a group of one gets 0."""
        is_correct = [reaches(reward, self.success_at) for reward in episode_rewards(group)]
        correct, wrong = pass_at_k_advantages(len(is_correct), sum(is_correct), min(self.k, len(is_correct)))
        return episode_credits(group.valid, [correct if is_right else wrong for is_right in is_correct])


def pass_at_k_advantages(n: int, c: int, k: int) -> tuple[float, float]:
    """Return the advantages of a correct and of a wrong episode, of n with c correct, in sets of k <= n."""
    if n < 1 or not 0 < c < n:
        return 0.0, 0.0
    failed = math.comb(n - c, k) / math.comb(n, k)
    deviation = math.sqrt(failed * (1.0 - failed)) + EPSILON
    wrong = failed - math.comb(n - c - 1, k - 1) / math.comb(n - 1, k - 1)
    return failed / deviation, wrong / deviation
