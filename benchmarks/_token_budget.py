"""A controller outside the package: the run ends when it has spent its tokens."""

import json
from pathlib import Path

from pydantic import Field, PrivateAttr

from envgym.config.settings import Settings
from envgym.runs.files import write_json
from envgym.trainer.methods.controllers.base import Control, ControlContext
from envgym.trainer.metrics.update import Metrics

_FILE = "spent.json"


class TokenBudget(Settings):
    """Stop after the first step at which the tokens of all steps reach a budget."""

    tokens: int = Field(ge=1)
    """The budget."""
    prefilled: bool = True
    """Whether prefilled tokens count, besides generated ones."""
    _spent: float = PrivateAttr(default=0.0)

    def after_step(self, context: ControlContext) -> Control | None:
        self._spent += tokens_of(dict(context.metrics), prefilled=self.prefilled)
        done = self._spent >= self.tokens
        return Control(stop=f"{self._spent:.0f} tokens are spent" if done else None, metrics={"spent": self._spent})

    def save(self, folder: Path) -> None:
        write_json(folder / _FILE, self._spent)

    def load(self, folder: Path) -> None:
        self._spent = float(json.loads((folder / _FILE).read_text(encoding="utf-8")))


def tokens_of(metrics: Metrics, *, prefilled: bool = True) -> float:
    """Return the tokens that a step generated and, if asked for, prefilled."""
    generated = metrics.get("cost/tokens_generated", 0.0)
    return generated + metrics.get("cost/tokens_prefilled", 0.0) if prefilled else generated
