"""RLPR's filter: groups whose rewards differ by less than half of what they do on average are dropped."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, PrivateAttr

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.runs.files import write_json
from envgym.trainer.methods.annotators.base import episode_value
from envgym.trainer.methods.protocols import FilterResult


class RlprStd(Settings):
    """Keep groups whose annotated values have a deviation s >= share · m, m the running mean of s. Source: 2506.18254.

    At step `active_from` m is the mean of the steps' mean s since step `counted_from`; each later step moves it:
    m <- decay · m + (1 - decay) · (mean s of the step). Before, every group with a value is kept. The deviation is
    unbiased; that of a single value is 0.
    """

    annotation: str = "rlpr"
    """Name of the annotations on episodes."""
    share: float = Field(default=0.5, ge=0)
    """Of the running mean, below which a group is dropped."""
    decay: float = Field(default=0.99, ge=0, lt=1)
    """How much of the running mean a step keeps."""
    counted_from: int = Field(default=6, ge=1)
    """First step that counts, from 1."""
    active_from: int = Field(default=11, ge=2)
    """First step at which groups are dropped; after `counted_from`."""
    _early: list[float] = PrivateAttr(default_factory=list)
    _mean: float | None = PrivateAttr(default=None)

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        return FilterResult.split(groups, [self._reason(group) for group in groups])

    @property
    def threshold(self) -> float:
        """Least deviation of a group that is kept; 0 before the filter is active."""
        return 0.0 if self._mean is None else self.share * self._mean

    def observe(self, groups: Sequence[Group], *, step: int) -> None:
        """Take in the deviations of the groups that train step `step`, from 1, has collected."""
        deviations = [deviation for group in groups if (deviation := self._deviation(group)) is not None]
        if step < self.counted_from or not deviations:
            return
        latest = statistics.fmean(deviations)
        if self._mean is not None:
            self._mean = self.decay * self._mean + (1 - self.decay) * latest
            return
        self._early.append(latest)
        if step >= self.active_from - 1:
            self._mean = statistics.fmean(self._early)

    def save(self, folder: Path) -> None:
        write_json(folder / "state.json", {"early": self._early, "mean": self._mean})

    def load(self, folder: Path) -> None:
        data = json.loads((folder / "state.json").read_text())
        self._early, self._mean = list(data["early"]), data["mean"]

    def _deviation(self, group: Group) -> float | None:
        values = [value for item in group.valid if (value := episode_value(item, self.annotation)) is not None]
        if not values:
            return None
        return statistics.stdev(values) if len(values) > 1 else 0.0

    def _reason(self, group: Group) -> str | None:
        if not group.valid:
            return "no_valid_episode"
        deviation = self._deviation(group)
        if deviation is None:
            return "not_annotated"
        return "low_deviation" if deviation < self.threshold else None
