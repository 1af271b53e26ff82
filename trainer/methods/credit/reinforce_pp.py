"""REINFORCE++: returns whitened over all sampled tokens of the batch."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group, Trajectory
from envgym.trainer.methods.credit.kl_reward import KL_SCORES, TokenCosts, kl_costs
from envgym.trainer.methods.credit.outcome import centred, episode_credits, episode_rewards
from envgym.trainer.methods.credit.paths import discounted_returns, turn_credit, turn_rewards
from envgym.trainer.methods.protocols import CreditContext, TrajectoryCredit
from envgym.trainer.methods.scores import ScoreRequest

VARIANCE_FLOOR = 1e-8
"""Added to the variance before its root is taken."""


class ReinforcePlusPlus(Settings):
    """Whiten returns: A_t = (G_t - mean) / sqrt(var + 1e-8), both over all sampled tokens of the batch.

    G_t is what the episode is paid from the token's turn on; with `baseline: group`, its reward minus the mean of its
    group, on all its tokens (REINFORCE++-baseline, for several episodes a task). Long episodes weigh more in the mean,
    so that a group of equal rewards gets advantages that are not 0 where lengths differ. Over tokens they sum to 0.

    With `kl_coef` every sampled token is also paid -kl_coef (log π - log π_ref), of the policy and the reference as the
    step begins, and G_t holds what is paid from the token on.

    Source: 2501.03262; Logic-RL (2502.14768) is the first form with a KL loss instead. Deviation: no discount.
    """

    baseline: Literal["none", "group"] = "none"
    """What is subtracted before whitening."""
    variance: Literal["sample", "population"] = "sample"
    """`sample`: unbiased, as in verl. `population`: as in OpenRLHF, the authors' framework."""

    kl_coef: float = Field(default=0.0, ge=0)
    """Of the KL term in the reward; 0 computes none. The authors' code has 0.01."""

    @property
    def scores(self) -> tuple[ScoreRequest, ...]:
        return KL_SCORES if self.kl_coef else ()

    @property
    def works_alone(self) -> bool:
        """Whether the only episode of a group has an advantage."""
        return self.baseline == "none"

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        if self.baseline == "group":
            credits = [c for group in groups for c in episode_credits(group.valid, centred(episode_rewards(group)))]
        else:
            credits = [turn_credit(e, discounted_returns(turn_rewards(e))) for group in groups for e in group.valid]
        if self.kl_coef:
            costs = kl_costs(groups, context, self.kl_coef)
            credits = [_with_costs(credit, of_tokens) for credit, of_tokens in zip(credits, costs, strict=True)]
        return whitened(credits, is_unbiased=self.variance == "sample")


def _with_costs(credit: TrajectoryCredit, costs: TokenCosts) -> TrajectoryCredit:
    """Subtract what each token and those after it cost, in all rows of the episode."""
    following = 0.0
    entries: list[tuple[float, ...]] = []
    for advantage, of_node in reversed(list(zip(credit.advantages, costs, strict=True))):
        assert isinstance(advantage, float), "one number a node so far"
        of_tokens: list[float] = []
        for cost in reversed(of_node):
            following += cost
            of_tokens.append(advantage - following)
        entries.append(tuple(of_tokens[::-1]))
    return replace(credit, advantages=(0.0, *entries[::-1][1:]))


def whitened(credits: Sequence[TrajectoryCredit], *, is_unbiased: bool) -> list[TrajectoryCredit]:
    """Return (A - mean) / sqrt(var + 1e-8) over all sampled tokens; a token counts in each episode that holds it.

    Value targets stay as they are.

    Args:
        credits: with one number a node, or one a sampled token of it.
        is_unbiased: divide the squares by one less than the number of tokens; of a single token the variance is 0.
    """
    counted = [
        pair
        for credit in credits
        for entry, count in zip(credit.advantages, sampled_tokens(credit.trajectory), strict=True)
        for pair in ([(value, 1) for value in entry] if isinstance(entry, tuple) else [(entry, count)])
        if pair[1]
    ]
    total = sum(count for _, count in counted)
    mean = math.fsum(advantage * count for advantage, count in counted) / max(total, 1)
    squares = math.fsum((advantage - mean) ** 2 * count for advantage, count in counted)
    scale = 1.0 / math.sqrt(squares / max(total - is_unbiased, 1) + VARIANCE_FLOOR)

    def white(entry: float | tuple[float, ...]) -> float | tuple[float, ...]:
        return tuple((v - mean) * scale for v in entry) if isinstance(entry, tuple) else (entry - mean) * scale

    return [replace(credit, advantages=(0.0, *map(white, credit.advantages[1:]))) for credit in credits]


def sampled_tokens(episode: Trajectory) -> list[int]:
    """Return the number of sampled tokens of each node of the path."""
    nodes = episode.tree.nodes
    return [sum(len(segment) for segment in nodes[node].edge.segments if segment.trains) for node in episode.path]
