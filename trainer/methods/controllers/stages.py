"""Stages of a run: settings that change at a step, or when a metric has passed a bound."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, model_validator

from envgym.config.settings import Settings
from envgym.errors import sentence
from envgym.runs.files import write_json
from envgym.trainer.methods.controllers.base import Control, ControlContext


class StageCondition(Settings):
    """After a step of the run, or when a metric has passed a bound often enough, whichever comes first."""

    step: int | None = Field(default=None, ge=1)
    """Train steps done."""
    metric: str | None = None
    """A metric of each step, such as `train/success`, or LABEL/METRIC of the newest evaluation, as `during/success`."""
    above: float | None = None
    """The metric is at least this."""
    below: float | None = None
    """The metric is at most this."""
    times: int = Field(default=1, ge=1)
    """Steps in a row that the metric must meet its bounds; one without the metric does not count."""

    @model_validator(mode="after")
    def _check(self) -> "StageCondition":
        is_bounded = self.above is not None or self.below is not None
        if (self.step is None and self.metric is None) or (self.metric is None) == is_bounded:
            got = self.model_dump(exclude_none=True, exclude={"times"})
            do = "set step=100, or metric=train/success with above=0.8"
            must = "name a step, or a metric with a bound"
            raise ValueError(sentence("condition", must, got, where="controllers", do=do))
        return self

    def is_met(self, value: float) -> bool:
        """Return whether a value of the metric is within its bounds."""
        return (self.above is None or value >= self.above) and (self.below is None or value <= self.below)


class Stage(Settings):
    """What begins once its condition holds."""

    after: StageCondition
    """Condition on which the stage begins."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Sections or dotted paths -> values, as in a file of settings."""
    reset_reference: bool = False
    """Make the current policy the reference."""
    reset_optimizer: bool = False
    """Forget the optimizer's moments."""
    stop: bool = False
    """End the run instead."""


class Stages(Settings):
    """Begin one stage after the other, each once its condition has held since the stage before it began.

    The first stage is the run as its settings describe it. Source: 2503.05592 (R1-Searcher: format and retrieval first,
    then the answer), 2505.24864 (ProRL: contexts and reset references by stages).
    """

    stages: tuple[Stage, ...] = Field(min_length=1)
    """Those after the first."""
    _begun: int = PrivateAttr(default=0)
    _met: int = PrivateAttr(default=0)

    def planned(self, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        del settings
        return [stage.settings for stage in self.stages]

    def after_step(self, context: ControlContext) -> Control:
        if self._begun == len(self.stages) or not self._holds(self.stages[self._begun].after, context):
            return Control(metrics={"stage": float(self._begun)})
        stage = self.stages[self._begun]
        self._begun, self._met = self._begun + 1, 0
        return Control(
            settings=stage.settings,
            reset_reference=stage.reset_reference,
            reset_optimizer=stage.reset_optimizer,
            stop=f"stage {self._begun} ends the run" if stage.stop else None,
            metrics={"stage": float(self._begun)},
        )

    def _holds(self, condition: StageCondition, context: ControlContext) -> bool:
        value = None if condition.metric is None else context.metric(condition.metric)
        if value is not None:
            self._met = self._met + 1 if condition.is_met(value) else 0
        is_late = condition.step is not None and context.step >= condition.step
        return is_late or self._met >= condition.times

    def save(self, folder: Path) -> None:
        write_json(folder / "stages.json", {"begun": self._begun, "met": self._met})

    def load(self, folder: Path) -> None:
        data = json.loads((folder / "stages.json").read_text())
        self._begun, self._met = data["begun"], data["met"]
