"""iStar: the outcome against the group, and every turn's process reward against those of the group."""

import statistics
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from envgym.core.trajectory import Group, Trajectory
from envgym.core.turns import Scored
from envgym.trainer.methods.annotators.base import turn_values
from envgym.trainer.methods.credit.outcome import leave_one_out
from envgym.trainer.methods.credit.paths import discounted_returns, turn_credit
from envgym.trainer.methods.protocols import CreditContext, GroupCredit, TrajectoryCredit


class Istar(GroupCredit):
    """Add two leave-one-out advantages: A_{i,t} = n/(n-1) (o_i - mean o) + w m/(m-1) (r_{i,t} - mean r).

    o are the n episode rewards of a group, r its process rewards, annotated per turn. The mean of r, and its count m,
    are over the first turns alone, as in the authors' code, or over all turns (`baseline`). With `norm=batch` the
    process rewards of a step are divided by their largest return in absolute value, max |Σ_{k >= t} r_k|.

    An episode without process rewards, because its annotation failed, does not train. A group of one gets 0.
    Source: 2509.19199 (iStar, OPRL) and its authors' code.
    """

    trains_equal_rewards: ClassVar[bool] = True
    annotation: str = "prm"
    """Name of the annotations that hold the process rewards."""
    step_weight: float = Field(default=1.0, ge=0)
    """Weight w of the process rewards."""
    baseline: Literal["first", "all"] = "first"
    """The turns that the process rewards are compared with."""
    norm: Literal["batch", "none"] = "batch"
    """What the process rewards are divided by."""

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        """Return one credit per valid episode that has process rewards."""
        del context
        rewarded = [
            [(episode, values) for episode, values in zip(group.valid, self._rewards(group), strict=True) if values]
            for group in groups
        ]
        returns = [value for group in rewarded for _, values in group for value in discounted_returns(values)]
        largest = max(map(abs, returns), default=0.0)
        scale = largest if self.norm == "batch" and largest else 1.0
        return [credit for group in rewarded for credit in self._credits(group, scale)]

    def _rewards(self, group: Group) -> list[tuple[float, ...] | None]:
        return [turn_values(episode, self.annotation) for episode in group.valid]

    def _credits(self, group: Sequence[tuple[Trajectory, Sequence[float]]], scale: float) -> list[TrajectoryCredit]:
        outcomes = [episode.reward.value for episode, _ in group if isinstance(episode.reward, Scored)]
        last = 1 if self.baseline == "first" else None
        compared = [value / scale for _, values in group for value in values[:last]]
        count, mean = len(compared), statistics.fmean(compared) if compared else 0.0
        weight = self.step_weight * count / (count - 1) if len(group) > 1 else 0.0
        return [
            turn_credit(episode, [advantage + weight * (value / scale - mean) for value in values])
            for (episode, values), advantage in zip(group, leave_one_out(outcomes), strict=True)
        ]
