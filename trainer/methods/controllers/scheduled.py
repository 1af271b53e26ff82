"""A setting as a function of the train step."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from envgym.config.plugins import Choice
from envgym.config.settings import Settings
from envgym.trainer.methods.controllers.base import Control, ControlContext
from envgym.trainer.methods.schedules import SCHEDULE, Schedule


class Scheduled(Settings):
    """Set a numeric setting from a schedule, such as `sampling.temperature` or `optim.lr`.

    The first step runs with the setting as the run states it; step n + 1 with the schedule's value after n steps.
    """

    setting: str
    """Dotted path, such as `sampling.temperature`."""
    schedule: Choice
    """`constant`, `linear`, `cosine`, or your own."""

    @cached_property
    def values(self) -> Schedule:
        return SCHEDULE.build(self.schedule, where="controllers")

    def planned(self, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the values after the first step, after half of the steps, and after all but one."""
        last = settings["run"]["steps"]
        return [{self.setting: self.values(step)} for step in sorted({1, max(last // 2, 1), max(last - 1, 1)})]

    def after_step(self, context: ControlContext) -> Control | None:
        """Return the value for the next step, where it is another."""
        value = self.values(context.step)
        return None if value == context.number(self.setting) else Control(settings={self.setting: value})
