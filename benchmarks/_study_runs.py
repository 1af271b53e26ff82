"""Runs of a study: `envgym` commands, each made once in a process of its own, and read as one record.

A run is named after its directory under the root of the study. It knows its command and settings, nothing of pages.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from pydantic import Field, JsonValue

from benchmarks._token_budget import tokens_of
from envgym.cli.main import main as envgym
from envgym.config.settings import Settings
from envgym.errors import RunError
from envgym.runs.changes import check_same
from envgym.runs.directory import RunDirectory, read_object
from envgym.runs.files import write_json
from envgym.runs.wall_time import read_wall_time
from envgym.stats import successes_of
from envgym.trainer.checks.preflight import resolve_precision
from envgym.trainer.settings import TrainSettings, load_train_settings
from envgym.trainer.workflows.critic_value import critic

ROOT: Final = Path(__file__).resolve().parent.parent
CAP: Final = 100_000
"""Train steps that no budget reaches."""
SUCCESS: Final = "success"
READS: Final = "reads.json"


class Budget(Settings):
    tokens: int = Field(ge=1)
    prefilled: bool = True
    """Whether prefilled tokens count, besides generated ones."""


class Run(Settings):
    name: str
    """Its directory, under the root of the study."""
    command: tuple[str, ...]
    """`train CONFIG`, `eval ...` or `value ...`, without settings of `train` and without the directory."""
    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Dotted path -> value, for `train`."""
    budget: Budget | None = None
    """Ends training; None: the settings' number of steps does."""
    stage: int = 0
    """Runs of a stage begin when those of all earlier stages have ended."""
    key: dict[str, JsonValue] = Field(default_factory=dict)
    """What identifies the run in its record: seed, cell, arm. A run without a key has no record."""
    critic: str = ""
    """Path of the value that leads an evaluation; the record has the tokens that it read."""
    log: tuple[str, ...] = ()
    """Metrics of each train step that the record lists."""

    @property
    def is_training(self) -> bool:
        return self.command[0] == "train"

    def overrides(self, root: Path) -> list[str]:
        """Return the settings over the file of a training run, as `--set` takes them."""
        every: dict[str, object] = {"run.directory": root / self.name, "run.name": Path(self.name).name}
        if self.budget is not None:
            counted = f"tokens: {self.budget.tokens}, prefilled: {str(self.budget.prefilled).lower()}"
            every["run.steps"] = CAP
            every["controllers"] = f"[{{name: 'benchmarks/_token_budget.py:TokenBudget', {counted}}}]"
        return [f"{name}={'null' if value is None else value}" for name, value in {**every, **self.set}.items()]

    def settings(self, root: Path) -> TrainSettings:
        return load_train_settings(ROOT / self.command[1], self.overrides(root))

    def words(self, root: Path) -> list[str]:
        """Return the words after `envgym` that start the run, or continue it."""
        directory = root / self.name
        if self.is_training and directory.exists():
            return ["train", str(directory), "--resume"]
        if self.is_training:
            return [*self.command, *(word for item in self.overrides(root) for word in ("--set", item))]
        resume = ["--resume"] if directory.exists() else []
        return [*self.command, *resume, "--out", str(directory)]

    def is_whole(self, root: Path) -> bool:
        """Return whether the run is there and has ended: a budget that is spent, or the last step, and evaluated."""
        directory = root / self.name
        if self.command[0] == "value":
            return (directory / "checkpoints").exists()
        if not (directory / "run.json").exists():
            return False
        run = RunDirectory.open(directory)
        evaluated = {data["step"] for data in run.evals()}
        if not self.is_training:
            return bool(evaluated) and (not self.critic or (directory / READS).exists())
        steps = [row for row in run.metrics() if row["step"]]
        last = int(steps[-1]["step"]) if steps else 0
        if self.budget is None:
            return last >= run.config["run"]["steps"] and last in evaluated
        spent = sum(tokens_of(row, prefilled=self.budget.prefilled) for row in steps)
        return last in evaluated and spent >= self.budget.tokens

    def make(self, root: Path) -> None:
        """Run the command, unless that is done; a run that was stopped continues.

        Raises: RunError: it failed, or a run that is there has other settings.
        """
        directory = (root / self.name).absolute()
        if self.is_training and (directory / "run.json").exists():
            now = resolve_precision(self.settings(root)).model_dump(mode="json")
            check_same(RunDirectory.open(directory).config, now, where=directory, but=("run.directory",))
        if self.is_whole(root):
            return
        if directory.exists() and (self.critic or self.command[0] == "value"):  # what a critic has read is not known
            shutil.rmtree(directory)
        log = directory.parent / f"{directory.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            program = ["benchmarks._study_runs", self.critic] if self.critic else ["envgym"]
            command = [sys.executable, "-m", *program, *self.words(root)]
            code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=False).returncode
        if code or not self.is_whole(root):
            raise RunError.of("run", "end well", f"code {code}", where=str(log), do="see its last lines")

    def record(self, root: Path, *, metric: str, by_task: bool) -> dict[str, Any] | None:
        """Return the numbers of a whole run as plain JSON types; None: it is not whole.

        Evaluations are recorded task by task if tasks are compared, else as points (tokens, metric).
        """
        if not self.is_whole(root):
            return None
        run = RunDirectory.open(root / self.name)
        steps = [row for row in run.metrics() if row["step"]]
        if by_task:
            logged = [{name: row[name] for name in ("step", *self.log) if name in row} for row in steps]
            minutes = round(sum(process.seconds for process in read_wall_time(run.path)) / 60)
            evaluations = run.evals()
            for data in evaluations if self.critic else ():
                read = read_object(run.path / READS)["tokens_read"]
                data["costs"]["value_reads"] = read / len(data["rewards"])
            return {"run": self.name, **self.key, "minutes": minutes, "evaluations": evaluations, "steps": logged}
        prefilled = self.budget is None or self.budget.prefilled
        spent = {0: 0.0}
        for row in steps:
            spent[int(row["step"])] = spent[int(row["step"]) - 1] + tokens_of(row, prefilled=prefilled)
        training = sum(row["train/success"] * tokens_of(row, prefilled=prefilled) for row in steps)
        return {
            **self.key,
            "points": [[spent[data["step"]], metric_of(data, metric)] for data in run.evals()],
            "steps": len(steps),
            "prefilled": sum(row["cost/tokens_prefilled"] for row in steps),
            "tokens": spent[max(spent)],
            "training": training / max(spent[max(spent)], 1.0),
            "seconds": sum(row["time/step_s"] for row in steps),
        }


def metric_of(evaluation: dict[str, Any], metric: str) -> float:
    """Return a metric of an evaluation; `success` is the share of tasks solved, and invalid episodes solve none."""
    if metric != SUCCESS:
        return float(evaluation["metrics"][f"metric/{metric}"])
    by_task = successes_of(evaluation["rewards"], evaluation["success_at"]).values()
    return fmean(fmean(bool(success) for success in of_task) for of_task in by_task)


def success_after(directory: Path, step: int) -> float | None:
    """Return the share of held-out tasks solved after `step` train steps; None: that was not measured, or not yet."""
    evaluations = RunDirectory.open(directory).evals() if directory.exists() else []
    return next((metric_of(data, SUCCESS) for data in evaluations if data["step"] == step), None)


def make_runs(runs: Iterable[Run], root: Path, *, jobs: int) -> list[str]:
    """Make the missing runs, stage by stage; return the errors. A stage does not begin after one with errors."""
    by_stage: dict[int, list[Run]] = {}
    for run in runs:
        by_stage.setdefault(run.stage, []).append(run)
    errors: list[str] = []
    with ThreadPoolExecutor(jobs) as pool:
        for _, of_stage in sorted(by_stage.items()):
            errors += [error for error in pool.map(partial(_error_of, root), of_stage) if error]
            if errors:
                break
    return errors


def _error_of(root: Path, run: Run) -> str:
    try:
        run.make(root)
    except RunError as error:
        return str(error)
    return ""


def main(words: Sequence[str]) -> int:
    """Evaluate with a critic, and write the tokens that it has read: CRITIC and the words after `envgym`."""
    run, *command = words
    code = envgym(command)
    write_json(Path(command[-1]) / READS, {"tokens_read": critic(run).tokens_read})
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
