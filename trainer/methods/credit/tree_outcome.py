"""Outcome-level methods on trees: an episode against those that share some of its turns, and against the group."""

import statistics

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import episode_credits, episode_rewards, standardised
from envgym.trainer.methods.credit.paths import GroupTree, TreeCredit
from envgym.trainer.methods.protocols import TrajectoryCredit


class TreeGrpo(TreeCredit):
    """Add two standardised rewards: A_i = z(r_i | its tree) + z(r_i | the group), z as in GRPO. Source: 2509.21240.

    Deviation: in a tree of one episode the first term is 0 (the authors' code lets the raw reward through). Rows
    train `per_path`: a token that k rows share is trained with the sum of their advantages. Over a group the
    advantages sum to 0; with one episode per tree they are GRPO's.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        rewards = episode_rewards(group)
        advantages = standardised(rewards)
        members: dict[int, list[int]] = {}
        for number, tree in enumerate(GroupTree(group=group).tree_numbers):
            members.setdefault(tree, []).append(number)
        for numbers in members.values():
            of_tree = standardised([rewards[number] for number in numbers])
            for number, advantage in zip(numbers, of_tree, strict=True):
                advantages[number] += advantage
        return episode_credits(group.valid, advantages)


class TreePo(TreeCredit):
    """Average over ancestors: A_i = Σ_a |a| (r_i - mean over a of r) / Σ_a |a|, a the episodes below an ancestor.

    Every set of at least two episodes on the way from the prompt to the leaf counts once, so unbranched turns add
    nothing; sub-groups weigh by their size. Chains get Dr. GRPO's advantages. Source: 2508.17445; the authors'
    whitening over the batch is left out.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        rewards = episode_rewards(group)
        group_tree = GroupTree(group=group)
        advantages: list[float] = []
        for reward, path in zip(rewards, group_tree.paths, strict=True):
            sets = {episodes_through for node in path if len(episodes_through := group_tree.episodes_through[node]) > 1}
            total = sum(map(len, sets))
            means = [(len(members), statistics.fmean(rewards[number] for number in members)) for members in sets]
            advantages.append(sum(size * (reward - mean) for size, mean in means) / max(total, 1))
        return episode_credits(group.valid, advantages)
