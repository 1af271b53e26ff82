"""A controller: what changes between two train steps.

    envgym train run.yaml --set 'controllers=[{name: examples/plugins/halve_rate.py:HalveRate, patience: 20}]'

A controller sees the metrics, evaluations and settings after every step, and returns a `Control`: settings for the next
steps, a reset of reference or optimizer, other weights, or the end of the run. One with a state has `save` and `load`,
so that a resumed run goes on with it.
"""

import json
from pathlib import Path

from pydantic import Field, PrivateAttr

from envgym.config.settings import Settings
from envgym.trainer.methods.controllers.base import Control, ControlContext


class HalveRate(Settings):
    """Halve `optim.lr` whenever the mean reward has had no new best for `patience` steps; end the run at `least`."""

    patience: int = Field(default=20, ge=1)
    least: float = Field(default=1e-7, gt=0)
    """The run ends where the rate would fall below this."""
    _best: float | None = PrivateAttr(default=None)
    _since: int = PrivateAttr(default=0)

    def after_step(self, context: ControlContext) -> Control | None:
        """Return the lower rate, or the end of the run, where it is time."""
        reward = context.metric("reward/mean")
        if reward is None:
            return None
        is_better = self._best is None or reward > self._best
        self._best, self._since = (reward, 0) if is_better else (self._best, self._since + 1)
        if self._since < self.patience:
            return None
        self._since = 0
        rate = context.number("optim.lr") / 2
        if rate < self.least:
            return Control(stop=f"the rate would fall below {self.least:g}")
        return Control(settings={"optim.lr": rate})

    def save(self, folder: Path) -> None:
        """Write what has been seen."""
        (folder / "seen.json").write_text(json.dumps({"best": self._best, "since": self._since}))

    def load(self, folder: Path) -> None:
        """Take it over."""
        data = json.loads((folder / "seen.json").read_text())
        self._best, self._since = data["best"], data["since"]
