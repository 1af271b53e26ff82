"""Coefficients as functions of the train step."""

import math
from typing import Final, Protocol, runtime_checkable

from pydantic import Field

from envgym.config.plugins import PluginKind
from envgym.config.settings import Settings
from envgym.trainer.tables import KINDS


@runtime_checkable
class Schedule(Protocol):
    """A number that depends on the train step."""

    def __call__(self, step: int) -> float:
        """Return the number after `step` train steps."""
        ...


SCHEDULE: Final[PluginKind[Schedule]] = KINDS["schedule"]


class Constant(Settings):
    """Always the same number."""

    value: float
    """The coefficient at every step."""

    def __call__(self, step: int) -> float:
        return self.value


class Linear(Settings):
    """From `start` to `end` in a straight line of `steps` steps, `end` afterwards."""

    start: float
    """The coefficient at step 0."""
    end: float
    """The coefficient from step `steps` on."""
    steps: int = Field(ge=1)
    """Train steps between the two."""

    def __call__(self, step: int) -> float:
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


class Cosine(Settings):
    """Up from 0 to `peak` in a straight line, down to `valley` along half a cosine, `valley` afterwards.

    With warmup w and decay d, at step s: peak s / w, then valley + (peak - valley) (1 + cos(π (s - w) / d)) / 2.
    """

    peak: float
    """The highest coefficient."""
    valley: float
    """The coefficient at the end."""
    warmup: int = Field(default=0, ge=0)
    """Steps of the way up."""
    decay: int = Field(ge=1)
    """Steps of the way down."""
    complement: bool = False
    """Return 1 less the number: what is left for another term."""

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            value = self.peak * step / self.warmup
        else:
            share = min((step - self.warmup) / self.decay, 1.0)
            value = self.valley + (self.peak - self.valley) * (1.0 + math.cos(math.pi * share)) / 2
        return 1.0 - value if self.complement else value
