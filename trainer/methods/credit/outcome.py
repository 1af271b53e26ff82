"""Outcome-level methods (one number per episode, on every node of its path), and what others share with them."""

import statistics
from collections.abc import Sequence

from envgym.core.trajectory import Group, Trajectory
from envgym.core.turns import Scored
from envgym.trainer.methods.credit.baseline_scale import BaselineCredit, Beta, scale_baselines
from envgym.trainer.methods.protocols import CreditContext, GroupCredit, TrajectoryCredit

EPSILON = 1e-6
"""Keeps equal rewards at advantage 0; small beside any spread of rewards worth training on."""


def episode_rewards(group: Group) -> list[float]:
    """Return the rewards of the group's valid episodes, in order."""
    return [reward.value for episode in group.valid if isinstance(reward := episode.reward, Scored)]


def episode_credits(episodes: Sequence[Trajectory], advantages: Sequence[float]) -> tuple[TrajectoryCredit, ...]:
    """Put one advantage on every sampled token of an episode."""
    return tuple(
        TrajectoryCredit(trajectory=episode, advantages=(0.0, *[advantage] * (len(episode.path) - 1)))
        for episode, advantage in zip(episodes, advantages, strict=True)
    )


def centred(rewards: Sequence[float]) -> list[float]:
    """Return r - mean r; the values sum to 0, and a single one is 0."""
    mean = statistics.fmean(rewards) if rewards else 0.0
    return [reward - mean for reward in rewards]


def standardised(rewards: Sequence[float]) -> list[float]:
    """Return (r - mean r) / (std r + 1e-6), std unbiased; the values sum to 0, and a single one is 0."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    deviation = statistics.stdev(rewards)
    return [difference / (deviation + EPSILON) for difference in centred(rewards)]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Return r_i - mean_{j != i} r_j; the values sum to 0, and a single one is 0."""
    others = len(rewards) - 1
    if others < 1:
        return [0.0] * len(rewards)
    total = sum(rewards)
    return [reward - (total - reward) / others for reward in rewards]


class Grpo(GroupCredit):
    """Standardise rewards: A_i = (r_i - mean r) / (std r + 1e-6), std unbiased. Source: 2402.03300.

    Each group's advantages sum to 0; a group of one episode gets 0. The division makes the gradient biased
    towards tasks with little spread (2503.20783): `dr_grpo` leaves it out.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        return episode_credits(group.valid, standardised(episode_rewards(group)))


class DrGrpo(GroupCredit):
    """Centre rewards: A_i = r_i - mean r, no division by the spread. Source: 2503.20783.

    The paper's other half, a constant instead of the row's length under the sum of token losses, is the
    aggregation `seq-mean-token-sum-norm`. Each group's advantages sum to 0.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        return episode_credits(group.valid, centred(episode_rewards(group)))


class Rloo(GroupCredit):
    """Leave one out: A_i = r_i - beta mean_{j != i} r_j, with beta = 1 G/(G-1) (r_i - mean r). Source: 2402.14740.

    The baseline does not depend on the episode's own actions, so the gradient is unbiased. A group of one gets 0.
    beta is ours; `fitted`, it differs from turn to turn, and a group without others has 1.
    """

    beta: Beta = 1.0
    """Scale of the baseline: a number, or `fitted` per turn to the other groups of the step."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode of a group without others."""
        return tuple(self.assign([group], CreditContext()))

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        del context
        return scale_baselines([self._pairs(group) for group in groups], self.beta)

    @staticmethod
    def _pairs(group: Group) -> list[BaselineCredit]:
        rewards = episode_rewards(group)
        compared = episode_credits(group.valid, leave_one_out(rewards))
        returns = episode_credits(group.valid, rewards if len(rewards) > 1 else [0.0] * len(rewards))
        return [BaselineCredit(*pair) for pair in zip(compared, returns, strict=True)]


class Opo(GroupCredit):
    """Subtract the length-weighted mean: A_i = r_i - Σ l_j r_j / Σ l_j, l the sampled tokens. Source: 2505.23585.

    The length-weighted advantages sum to 0; with episodes of equal length it is Dr. GRPO. A group of one gets 0.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        rewards = episode_rewards(group)
        lengths = [episode.num_sampled for episode in group.valid]
        weighted = sum(length * reward for length, reward in zip(lengths, rewards, strict=True))
        baseline = weighted / max(sum(lengths), 1)
        return episode_credits(group.valid, [reward - baseline for reward in rewards])
