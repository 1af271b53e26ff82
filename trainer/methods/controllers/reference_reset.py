"""A reference that follows the policy when progress stalls."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr

from envgym.config.settings import Settings
from envgym.errors import SettingsError
from envgym.runs.files import write_json
from envgym.trainer.methods.controllers.base import Control, ControlContext


class ReferenceReset(Settings):
    """Make the current policy the reference of the KL term, and reset the optimizer's moments, when progress stalls.

    With m_t the mean of the last `window` values of the metric, the best so far b and the number of steps s since it
    was reached: b = m_t and s = 0 where m_t > b + min_gain, else s + 1. At s = patience the reference is reset, and s
    is 0 again. A step without the metric counts as none; the first `window` - 1 only fill the mean.

    Source: 2505.24864 (ProRL), whose rule for a stall is not published: window, patience and gain are ours.
    """

    metric: str = "train/success"
    """Of each step, or LABEL/METRIC of the newest evaluation, such as `during/success`."""
    window: int = Field(default=10, ge=1)
    """Values of the metric over which its mean is taken."""
    patience: int = Field(default=50, ge=1)
    """Steps without a new best."""
    min_gain: float = Field(default=0.0, ge=0)
    """How far a new best must lie above the old one."""
    reset_optimizer: bool = True
    """Forget the optimizer's moments, too."""
    _values: list[float] = PrivateAttr(default_factory=list)
    _best: float | None = PrivateAttr(default=None)
    _since: int = PrivateAttr(default=0)

    def planned(self, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Plan no settings. Raises: SettingsError: there is no KL term, so a reset would change nothing."""
        if not settings["objective"]["kl_coef"]:
            do = "set objective.kl_coef=0.001, or leave the controller out"
            must = "be used with a KL term to the reference"
            raise SettingsError.of("reference_reset", must, "objective.kl_coef=0", where="controllers", do=do)
        return ()

    def after_step(self, context: ControlContext) -> Control | None:
        """Reset the reference where progress has stalled."""
        value = context.metric(self.metric)
        if value is None:
            return None
        self._values = [*self._values, value][-self.window :]
        if len(self._values) < self.window:
            return None
        mean = statistics.fmean(self._values)
        if self._best is None or mean > self._best + self.min_gain:
            self._best, self._since = mean, 0
        else:
            self._since += 1
        is_stalled = self._since >= self.patience
        metrics = {"best": self._best, "stalled_steps": float(self._since)}
        self._since = 0 if is_stalled else self._since
        return Control(reset_reference=is_stalled, reset_optimizer=is_stalled and self.reset_optimizer, metrics=metrics)

    def save(self, folder: Path) -> None:
        data = {"values": self._values, "best": self._best, "since": self._since}
        write_json(folder / "progress.json", data)

    def load(self, folder: Path) -> None:
        data = json.loads((folder / "progress.json").read_text())
        self._values, self._best, self._since = data["values"], data["best"], data["since"]
