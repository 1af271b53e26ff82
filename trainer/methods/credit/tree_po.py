"""TreePO: an episode against the sub-groups of all its ancestors."""

import statistics

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_credits, episode_rewards
from envgym.trainer.methods.credit.paths import GroupTree
from envgym.trainer.methods.protocols import TrajectoryCredit


class TreePo(Settings):
    """Average over ancestors: A_i = Σ_a |a| (r_i - mean over a of r) / Σ_a |a|, a the episodes below an ancestor.

    Every set of at least two episodes on the way from the prompt to the leaf counts once, so unbranched turns add
    nothing; sub-groups weigh by their size. Chains get Dr. GRPO's advantages. Source: 2508.17445; the authors'
    whitening over the batch is left out.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        rewards = episode_rewards(group)
        group_tree = GroupTree(group=group)
        advantages: list[float] = []
        for reward, path in zip(rewards, group_tree.paths, strict=True):
            sets = {episodes_through for node in path if len(episodes_through := group_tree.episodes_through[node]) > 1}
            total = sum(map(len, sets))
            means = [(len(members), statistics.fmean(rewards[number] for number in members)) for members in sets]
            advantages.append(sum(size * (reward - mean) for size, mean in means) / max(total, 1))
        return episode_credits(group.valid, advantages)
