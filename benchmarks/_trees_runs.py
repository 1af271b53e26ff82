"""The runs of benchmarks/trees.py: each seed warm-started once, then trained by every arm in every cell."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarks._studies import ROOT
from benchmarks._token_budget import tokens_of
from envgym.cli.main import main as envgym
from envgym.errors import RunError, SettingsError, sentence
from envgym.run_changes import check_same
from envgym.runs import RunDirectory
from envgym.settings import Settings
from envgym.trainer.settings import load_train_settings

WARM_START = "warm_start"
CAP = 100_000
"""Steps that no budget reaches."""


class Arm(Settings):
    """What is compared: search, credit, and what they need."""

    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted path -> value."""
    rates: dict[str, float] = Field(default_factory=dict)
    """Cell -> learning rate, chosen on the pilot seeds."""


class Cell(Settings):
    """What all arms train on."""

    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted path -> value."""
    predicted: str
    """What was expected before the first run."""


class Declaration(Settings):
    """What was fixed before the first declared seed was run."""

    config: str
    """Settings of all runs; an arm, a cell and a seed change some of them."""
    metric: str
    """Metric of the held-out tasks whose area under the curve is compared."""
    seeds: tuple[int, ...]
    pilot_seeds: tuple[int, ...]
    budget: int = Field(ge=1)
    """Generated tokens that training may spend."""
    rates: tuple[float, ...]
    """Learning rates that an arm may have."""
    baseline: str
    """The arm that the others are compared with."""
    primary: str
    """The arm whose difference to the baseline is tested first; with two cells, between them."""
    others: tuple[tuple[str, str], ...]
    """Further pairs of arms that are compared."""
    minimum_detectable_effect: float | None = Field(default=None, gt=0, le=1)
    """What the primary test shows with probability 0.8 on the declared seeds, by the pilot; None: not known yet."""
    cells: dict[str, Cell]
    arms: dict[str, Arm]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """What is compared in every cell: an arm, and what it is compared with."""
        return [*((arm, self.baseline) for arm in self.arms if arm != self.baseline), *self.others]

    def rate(self, arm: str, cell: str) -> float:
        """Return a declared learning rate. Raises: SettingsError: the pilot has not chosen it yet."""
        if cell not in self.arms[arm].rates:
            do = "run `pilot`, write what it prints into the declaration, and commit that"
            raise SettingsError.of(
                f"rate of {arm}", "be declared for every cell", f"none for {cell}", where="arms", do=do
            )
        return self.arms[arm].rates[cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRun:
    """One arm, in one cell, with one seed and rate; without a cell the warm start of the seed."""

    root: Path
    seed: int
    cell: str = ""
    arm: str = WARM_START
    rate: float = 0.0

    @property
    def directory(self) -> Path:
        """Where it is recorded."""
        name = f"{self.cell}-{self.arm}-{self.rate:g}" if self.cell else self.arm
        return self.root / f"seed-{self.seed}" / name.replace("/", "-").replace(" ", "-")

    def sets(self, declared: Declaration) -> dict[str, Any]:
        """Return what the run sets over the file."""
        every = {"run.seed": self.seed, "model.tiny.seed": self.seed, "run.directory": self.directory}
        if not self.cell:
            return {**every, "run.steps": 0}
        warm_start = TreeRun(root=self.root, seed=self.seed).directory
        counted = f"{{name: 'benchmarks/_token_budget.py:TokenBudget', tokens: {declared.budget}, prefilled: false}}"
        return {
            **every,
            "model.name": warm_start / "checkpoints" / "step-000000" / "model",
            "sft": "null",
            "run.steps": CAP,
            "optim.lr": self.rate,
            "controllers": f"[{counted}]",
            **declared.cells[self.cell].set,
            **declared.arms[self.arm].set,
        }

    def points(self, declared: Declaration) -> list[tuple[float, float]] | None:
        """Return (tokens generated, metric) of every evaluation; None: the run is not whole."""
        if not self.directory.exists():
            return None
        run, spent = RunDirectory.open(self.directory), {0: 0.0}
        for row in run.metrics():
            if row["step"]:
                spent[int(row["step"])] = spent[int(row["step"]) - 1] + tokens_of(row, prefilled=False)
        last = max(spent)
        values = {int(data["step"]): data["metrics"][f"metric/{declared.metric}"] for data in run.evals()}
        if last not in values or (self.cell and spent[last] < declared.budget):
            return None
        return [(spent[step], values[step]) for step in sorted(values)]

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.directory.parent / f"{self.directory.name}.log"

    def make(self, declared: Declaration) -> None:
        """Train, unless that is done; a run that was stopped continues.

        Raises: RunError: training failed, or a run that is there has other settings.
        """
        sets = [f"{name}={value}" for name, value in self.sets(declared).items()]
        with contextlib.chdir(ROOT):
            if self.directory.exists():
                now = load_train_settings(ROOT / declared.config, sets).model_dump(mode="json")
                check_same(RunDirectory.open(self.directory).config, now, where=self.directory)
            if self.points(declared) is not None:
                return
            new = [declared.config, *(word for item in sets for word in ("--set", item))]
            words = [str(self.directory), "--resume"] if self.directory.exists() else new
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                code = envgym(["train", *words])
        if code or self.points(declared) is None:
            raise RunError(sentence("run", "end well", f"code {code}", where=str(self.log), do="see its last lines"))

    def record(self, declared: Declaration) -> dict[str, Any] | None:
        """Return what the page is made of; None: the run is not whole."""
        points = self.points(declared)
        if points is None:
            return None
        steps = [row for row in RunDirectory.open(self.directory).metrics() if row["step"]]
        return {
            "seed": self.seed,
            "cell": self.cell,
            "arm": self.arm,
            "rate": self.rate,
            "points": points,
            "steps": len(steps),
            "prefilled": sum(row["cost/tokens_prefilled"] for row in steps),
            "seconds": sum(row["time/step_s"] for row in steps),
        }


def area(points: list[tuple[float, float]], budget: float) -> float:
    """Return the mean of the metric over [0, budget] tokens, linear between the points; the last one reaches it."""
    total, (before, low) = 0.0, points[0]
    for spent, skill in points[1:]:
        end = min(spent, budget)
        at_end = low + (skill - low) * (end - before) / (spent - before)
        total += (end - before) * (low + at_end) / 2
        before, low = spent, skill
        if spent >= budget:
            break
    return total / budget
