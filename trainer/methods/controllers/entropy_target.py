"""A coefficient of the entropy bonus that keeps the entropy where it should be."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field, PrivateAttr

from envgym.config.settings import Settings
from envgym.runs.files import write_json
from envgym.trainer.methods.controllers.base import Control, ControlContext

ENTROPY: Final = "loss/entropy"
COEF: Final = "objective.entropy_coef"


class EntropyTarget(Settings):
    """Raise the coefficient c of the entropy bonus where the entropy H is below its target, and lower it above.

    c_(t+1) = min(max(c_t + rate (target - H_t), 0), max_coef): a descent on the multiplier of the constraint
    H >= target. Without a `target` it is the entropy of the first step that trains, as in 2509.25133 (SIREN), whose
    loss on selected tokens is another method.

    Source: 1812.05905 (the temperature of soft actor-critic; there its logarithm is what descends).
    """

    target: float | None = Field(default=None, ge=0)
    """Nats, the mean over trained tokens."""
    rate: float = Field(default=1e-3, gt=0)
    """How much the coefficient changes per nat off the target."""
    max_coef: float = Field(default=0.01, gt=0)
    """Highest coefficient of the bonus."""
    _target: float | None = PrivateAttr(default=None)

    def planned(self, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the bounds of the coefficient."""
        del settings
        return [{COEF: self.max_coef}, {COEF: 0.0}]

    def after_step(self, context: ControlContext) -> Control | None:
        entropy = context.metric(ENTROPY)
        if entropy is None:
            return None
        if self._target is None:
            self._target = entropy if self.target is None else self.target
        coef = context.number(COEF) + self.rate * (self._target - entropy)
        return Control(settings={COEF: min(max(coef, 0.0), self.max_coef)}, metrics={"target": self._target})

    def save(self, folder: Path) -> None:
        write_json(folder / "target.json", {"target": self._target})

    def load(self, folder: Path) -> None:
        self._target = json.loads((folder / "target.json").read_text())["target"]
