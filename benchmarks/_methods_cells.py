"""The cells of benchmarks/methods.py: an env and seed warm-started once, then trained by each arm."""

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarks._studies import ROOT, Game, success, train
from benchmarks._token_budget import tokens_of
from envgym.run_changes import check_same
from envgym.runs import RunDirectory
from envgym.settings import Settings
from envgym.trainer.settings import load_train_settings

EXAMPLES = ROOT / "examples" / "methods"
WARM_START = "warm_start"
"""Names the run that the others begin with."""
CAP = 100_000
"""Steps that no budget reaches."""


class Arm(Settings):
    """What is compared: a recipe, and what it needs besides."""

    recipe: str
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted path -> value."""


class Declaration(Settings):
    """What was fixed before the first declared seed was run."""

    seeds: tuple[int, ...]
    pilot_seeds: tuple[int, ...]
    baseline: str
    """The arm that the others are compared with."""
    arms: dict[str, Arm]
    tasks: int = Field(ge=1)
    """Held-out tasks of the evaluation after the whole budget."""
    games: dict[str, Game]

    @property
    def compared(self) -> tuple[str, ...]:
        """All arms but the baseline."""
        return tuple(arm for arm in self.arms if arm != self.baseline)

    def minimum_detectable_effects(self, games: Iterable[str]) -> dict[str, float | None]:
        """Return the minimum detectable effect by env."""
        return {game: self.games[game].minimum_detectable_effect for game in games}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The runs of one env and seed."""

    declared: Declaration
    game: str
    seed: int
    root: Path

    def directory(self, arm: str) -> Path:
        """Return the run directory of an arm, or of the warm start."""
        return self.root / self.game / f"seed-{self.seed}" / arm

    def sets(self, arm: str) -> dict[str, object]:
        """Return what the run sets over the env's file."""
        every: dict[str, object] = {
            "run.seed": self.seed,
            "model.tiny.seed": self.seed,
            "evaluation.tasks": self.declared.tasks,
        }
        if arm == WARM_START:
            return {**every, "run.steps": 0}
        chosen, budget = self.declared.arms[arm], self.declared.games[self.game].budget
        return {
            **every,
            "recipe": chosen.recipe,
            "model.name": self.directory(WARM_START) / "checkpoints" / "step-000000" / "model",
            "sft": "null",
            "run.steps": CAP,
            "controllers": f"[{{name: 'benchmarks/_token_budget.py:TokenBudget', tokens: {budget}}}]",
            **chosen.set,
        }

    def settings(self, arm: str) -> Mapping[str, Any]:
        """Return the settings of the run as plain data."""
        sets = [f"{name}={value}" for name, value in self.sets(arm).items()]
        return load_train_settings(EXAMPLES / f"{self.game}.yaml", sets).model_dump(mode="json")

    def result(self, arm: str) -> "Result | None":
        """Return what the whole run gave; None: it is not whole, or not there."""
        path = self.directory(arm)
        return result_of(RunDirectory.open(path), self.declared.games[self.game].budget) if path.exists() else None

    def make(self) -> list[str]:
        """Train what is missing; return the arms that failed. Raises: RunError: a run there has other settings."""
        failed = []
        for arm in (WARM_START, *self.declared.arms):
            path, budget = self.directory(arm), 0 if arm == WARM_START else self.declared.games[self.game].budget
            if path.exists():
                check_same(RunDirectory.open(path).config, self.settings(arm), where=path, but=("run",))
            try:
                train(
                    f"examples/methods/{self.game}.yaml",
                    path,
                    self.sets(arm),
                    is_whole=lambda run, budget=budget: result_of(run, budget) is not None,  # type: ignore[misc]  # bound
                )
            except subprocess.CalledProcessError:
                if arm == WARM_START:
                    raise
                failed.append(f"{self.game}, seed {self.seed}, {arm}")
        return failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The numbers of one whole run."""

    success: float
    """Share of the held-out tasks solved after the budget."""
    area: float
    """Mean success in training, each step weighed by its tokens."""
    tokens: float
    steps: int
    seconds: float
    """Spent in train steps, by the clock."""


def result_of(run: RunDirectory, budget: int) -> Result | None:
    """Return the numbers of a run; None: it has not spent its budget, or was not evaluated after it."""
    steps = [row for row in run.metrics() if row["step"] > 0]
    spent = [tokens_of(row) for row in steps]
    last = int(steps[-1]["step"]) if steps else 0
    final = success(run.path, last)
    if sum(spent) < budget or final is None:
        return None
    area = sum(row["train/success"] * tokens for row, tokens in zip(steps, spent, strict=True)) / max(sum(spent), 1.0)
    seconds = sum(row["time/step_s"] for row in steps)
    return Result(success=final, area=area, tokens=sum(spent), steps=last, seconds=seconds)
