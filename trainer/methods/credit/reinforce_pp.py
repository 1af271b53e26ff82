"""REINFORCE++: returns whitened over all sampled tokens of the batch."""

import math
from collections.abc import Sequence
from typing import Literal

from envgym.core.trajectory import Group, Trajectory
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import centred, episode_credits, episode_rewards
from envgym.trainer.methods.credit.paths import discounted_returns, turn_credit, turn_rewards
from envgym.trainer.methods.protocols import CreditContext, TrajectoryCredit

VARIANCE_FLOOR = 1e-8
"""Added to the variance before its root is taken."""


class ReinforcePlusPlus(Settings):
    """Whiten returns: A_t = (G_t - mean) / sqrt(var + 1e-8), both over all sampled tokens of the batch.

    G_t is what the episode is paid from the token's turn on; with `baseline: group`, its reward less the mean of its
    group, on all its tokens (REINFORCE++-baseline, for several episodes a task). Long episodes weigh more in the mean,
    so that a group of equal rewards gets advantages that are not 0 where lengths differ. Over tokens they sum to 0.

    Source: 2501.03262; Logic-RL (2502.14768) is the first form with a KL loss. Deviation: no KL term in the reward
    (`objective.kl_coef` has one in the loss), and no discount.
    """

    baseline: Literal["none", "group"] = "none"
    """What is subtracted before whitening."""
    variance: Literal["sample", "population"] = "sample"
    """`sample`: unbiased, as in verl. `population`: as in OpenRLHF, the authors' framework."""

    @property
    def works_alone(self) -> bool:
        """Whether the only episode of a group has an advantage."""
        return self.baseline == "none"

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        """Return one credit per valid episode."""
        del context
        if self.baseline == "group":
            credits = [c for group in groups for c in episode_credits(group.valid, centred(episode_rewards(group)))]
        else:
            credits = [turn_credit(e, discounted_returns(turn_rewards(e))) for group in groups for e in group.valid]
        return whitened(credits, is_unbiased=self.variance == "sample")


def whitened(credits: Sequence[TrajectoryCredit], *, is_unbiased: bool) -> list[TrajectoryCredit]:
    """Return (A - mean) / sqrt(var + 1e-8) over all sampled tokens; a token counts in each episode that holds it.

    Args:
        credits: with one number a node.
        is_unbiased: divide the squares by one less than the number of tokens; of a single token the variance is 0.
    """
    counted = [
        (advantage, count)
        for credit in credits
        for advantage, count in zip(credit.advantages, sampled_tokens(credit.trajectory), strict=True)
        if isinstance(advantage, float) and count
    ]
    total = sum(count for _, count in counted)
    mean = math.fsum(advantage * count for advantage, count in counted) / max(total, 1)
    squares = math.fsum((advantage - mean) ** 2 * count for advantage, count in counted)
    scale = 1.0 / math.sqrt(squares / max(total - is_unbiased, 1) + VARIANCE_FLOOR)
    return [
        TrajectoryCredit(
            trajectory=credit.trajectory,
            advantages=(
                0.0,
                *((advantage - mean) * scale for advantage in credit.advantages[1:] if isinstance(advantage, float)),
            ),
        )
        for credit in credits
    ]


def sampled_tokens(episode: Trajectory) -> list[int]:
    """Return the number of sampled tokens of each node of the path."""
    nodes = episode.tree.nodes
    return [sum(len(segment) for segment in nodes[node].edge.segments if segment.trains) for node in episode.path]
