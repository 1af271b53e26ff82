"""BNPO: rewards are normalised by a Beta density that is fitted to the whole batch."""

import math
import statistics
from collections.abc import Sequence

from pydantic import model_validator

from envgym.core.trajectory import Group
from envgym.core.turns import reaches
from envgym.errors import InvalidInput, sentence
from envgym.trainer.methods.credit.outcome import centred, episode_credits, episode_rewards
from envgym.trainer.methods.protocols import CreditContext, GroupCredit, TrajectoryCredit

LARGEST_SCALE = 1e6
"""Of 1 / f, as in the authors' code; where it binds, r - p is near 0."""


class Bnpo(GroupCredit):
    """Divide by a Beta density: A_i = (r_i - p) / f(p; α, β), p the mean of the group's rewards, scaled to [0, 1].

    Beta(a, b) is fitted to the p of all groups by their mean m and unbiased variance v: a = (m(1-m)/v - 1) m,
    b = (m(1-m)/v - 1)(1-m). Then α = max(1 + a/3, 1) and β = max(1 + b/3, 1), of all densities the one of least
    variance. α = β = 1 is Dr. GRPO (as for one group, or p that do not differ), α = β = 3/2 is GRPO up to a factor.
    Each group's advantages sum to 0. Groups of equal rewards belong to the fit: keep them (`filter.name=keep_all`).

    Source: 2506.02864 and its code. Deviations: where all p are equal nothing is fitted (the authors' code divides by
    0); no decomposition of rewards with several components.
    """

    low: float = 0.0
    """The least reward, which counts as 0."""
    high: float = 1.0
    """The greatest reward, which counts as 1."""

    @model_validator(mode="after")
    def _check_range(self) -> "Bnpo":
        if not self.low < self.high:
            do = "give the range of the env's rewards"
            raise ValueError(sentence("high", f"lie above low ({self.low:g})", self.high, where="credit", do=do))
        return self

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        """Return one credit per valid episode. Raises: InvalidInput: a reward outside [low, high]."""
        del context
        rewards = [self._scaled(group) for group in groups]
        means = [statistics.fmean(of_group) if of_group else None for of_group in rewards]
        alpha, beta = beta_parameters([mean for mean in means if mean is not None])
        return [
            credit
            for group, of_group, mean in zip(groups, rewards, means, strict=True)
            if mean is not None
            for credit in episode_credits(group.valid, [v * _scale(mean, alpha, beta) for v in centred(of_group)])
        ]

    def _scaled(self, group: Group) -> list[float]:
        """Return (r - low) / (high - low) of a group's valid episodes."""
        rewards = episode_rewards(group)
        for reward in rewards:
            if not (reaches(reward, self.low) and reaches(self.high, reward)):
                must, do = f"lie in [{self.low:g}, {self.high:g}]", "set credit.low and credit.high to the env's range"
                raise InvalidInput.of("reward", must, reward, where=f"bnpo, group {group.key}", do=do)
        return [(reward - self.low) / (self.high - self.low) for reward in rewards]


def beta_parameters(means: Sequence[float]) -> tuple[float, float]:
    """Return (α, β) from the mean rewards of groups, each in [0, 1]; (1, 1) where they do not differ."""
    variance = statistics.variance(means) if len(means) > 1 else 0.0
    if variance <= 0.0:
        return 1.0, 1.0
    mean = statistics.fmean(means)
    size = mean * (1.0 - mean) / variance - 1.0
    return max(1.0 + size * mean / 3.0, 1.0), max(1.0 + size * (1.0 - mean) / 3.0, 1.0)


def _scale(p: float, alpha: float, beta: float) -> float:
    """Return 1 / f(p; α, β), at most `LARGEST_SCALE`."""
    if (p <= 0.0 and alpha > 1.0) or (p >= 1.0 and beta > 1.0):
        return LARGEST_SCALE
    log_density = math.lgamma(alpha + beta) - math.lgamma(alpha) - math.lgamma(beta)
    log_density += (alpha - 1.0) * math.log(p) if alpha > 1.0 else 0.0
    log_density += (beta - 1.0) * math.log1p(-p) if beta > 1.0 else 0.0
    return min(math.exp(min(-log_density, math.log(LARGEST_SCALE))), LARGEST_SCALE)
