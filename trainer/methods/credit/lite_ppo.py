"""Lite PPO: rewards are centred in the group and divided by the spread of the whole batch."""

import statistics
from collections.abc import Sequence
from typing import Literal

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import EPSILON, centred, episode_credits, episode_rewards
from envgym.trainer.methods.protocols import CreditContext, GroupCredit, TrajectoryCredit


class LitePpo(GroupCredit):
    """Divide by the spread of the batch: A_i = (r_i - mean of its group) / (std + 1e-6), one std for all groups.

    A group of equal rewards gets 0; small differences are not amplified, as by a division by the group's own std.
    The std is one of two, which differ (settings). Source: 2508.08221; the first is that of the authors' framework
    (ROLL), the second AReaL's. Each group's advantages sum to 0; a single group with `raw` gets GRPO's.
    """

    spread: Literal["raw", "centred"] = "raw"
    """`raw`: of the batch's rewards as they are, unbiased. `centred`: of the rewards less their group's mean, of the
    population."""

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        del context
        rewards = [episode_rewards(group) for group in groups]
        differences = [centred(of_group) for of_group in rewards]
        if self.spread == "raw":
            raw = [reward for of_group in rewards for reward in of_group]
            deviation = statistics.stdev(raw) if len(raw) > 1 else 0.0
        else:
            deviation = statistics.pstdev([value for of_group in differences for value in of_group] or [0.0])
        return [
            credit
            for group, of_group in zip(groups, differences, strict=True)
            for credit in episode_credits(group.valid, [value / (deviation + EPSILON) for value in of_group])
        ]
