"""What trackers share: one run of the tracker for one run directory, also after resumes, with every step in it."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from envgym.agents.evaluation.play import EvalRecord
from envgym.config.masking import masked
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory, read_object
from envgym.runs.files import write_json
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.evaluation import evaluation_metrics
from envgym.trainer.metrics.update import Metrics

FOLDER: Final = "trackers"
"""Folder of a run directory with a file per tracker: the id of the tracker's run, and the number of starts."""
ATTEMPT: Final = "run/attempt"
"""Metric that every train step has in addition: number of starts of the run, from 1. Repeated steps differ in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run that a tracker shows."""

    directory: Path
    name: str
    config: Mapping[str, Any]
    """The settings, without secrets."""
    first_step: int
    """Train steps that are done; 0 for a new run."""
    attempt: int
    """Number of starts, this one included."""
    id: str | None
    """Id of the tracker's run, as `open_run` returned it at the first start; None at the first start."""


class Tracker(Callback, ABC):
    """Base of the trackers: sends every step and every evaluation to one run of the tracker.

    A resumed run continues the tracker's run. It first sends what the run directory has recorded and the tracker lacks:
    steps that a kill or an outage cut off, or all steps if the tracker was added later. Steps after the checkpoint are
    made again and sent again, with another `run/attempt`.
    """

    NAME: ClassVar[str]
    """Name in `run.trackers`."""

    def __init__(self) -> None:
        self._attempt, self._is_open = 0, False

    # ---- what a tracker implements ---------------------------------------------------------------------------

    @abstractmethod
    def open_run(self, run: TrackedRun) -> str:
        """Create the tracker's run, or continue the one with `run.id`; return its id."""

    @abstractmethod
    def send(self, step: int, metrics: Metrics) -> None:
        """Add a row of metrics at a train step."""

    @abstractmethod
    def steps_of(self, metric: str) -> Collection[int] | None:
        """Return the steps at which the tracker's run has a metric; None if that cannot be read."""

    @abstractmethod
    def close_run(self, *, failed: bool) -> None:
        """Send what is not sent yet, and mark the tracker's run as finished or failed."""

    # ---- callbacks -------------------------------------------------------------------------------------------

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        """Open the tracker's run and send recorded steps that it lacks. Raises: whatever the package raises."""
        file = directory / FOLDER / f"{self.NAME}.json"
        saved = read_object(file) if file.exists() else {}
        self._attempt = saved.get("attempts", 0) + 1
        run_id = self.open_run(
            TrackedRun(
                directory=directory,
                name=config["run"]["name"],
                config=masked(config),
                first_step=first_step,
                attempt=self._attempt,
                id=saved.get("id"),
            )
        )
        self._is_open = True
        write_json(file, {"id": run_id, "attempts": self._attempt})
        if first_step:
            self._send_missing(RunDirectory(directory), first_step)

    def on_step(self, step: int, metrics: Metrics) -> None:
        self.send(step, {ATTEMPT: float(self._attempt), **metrics})

    def on_evaluation(self, step: int, label: str, metrics: Metrics) -> None:
        self.send(step, _labelled(label, metrics))

    def on_end(self, report: Path | None) -> None:
        """Close the tracker's run, as failed if there is no report."""
        if self._is_open:
            self._is_open = False
            self.close_run(failed=report is None)

    def _send_missing(self, run: RunDirectory, last: int) -> None:
        sent: dict[str, Collection[int] | None] = {}
        for step, row in _recorded(run, last):
            marker = next(reversed(row), ATTEMPT)  # stores that write one metric after another have it if they have all
            if marker not in sent:
                sent[marker] = self.steps_of(marker)
            steps = sent[marker]
            if steps is not None and step not in steps:
                self.send(step, {ATTEMPT: float(self._attempt), **row})


def _labelled(label: str, metrics: Metrics) -> Metrics:
    return {f"{label}/{name}": value for name, value in metrics.items()}


def _recorded(run: RunDirectory, last: int) -> list[tuple[int, Metrics]]:
    """Return the rows of all recorded train steps and evaluations up to step `last`, by step."""
    rows = [(int(row["step"]), {k: v for k, v in row.items() if k != "step"}) for row in run.metrics()]
    steps = [(step, row) for step, row in rows if 1 <= step <= last]
    records = [EvalRecord.from_json(data) for data in run.evals() if data["step"] <= last]
    return sorted(
        [*steps, *((record.step, _labelled(record.label, evaluation_metrics(record))) for record in records)],
        key=lambda item: item[0],
    )


def load_package(module: str, *, tracker: str, package: str) -> Any:  # a module without types
    """Import the package of a tracker. Raises: SettingsError: it is not installed, or lacks a package itself."""
    try:
        return import_module(module)
    except ImportError as error:
        got = "no such package" if error.name == module else str(error)
        do = f"run `pip install {package}`, or leave it out of run.trackers"
        must = f"have the {package} package installed"
        raise SettingsError.of(f"tracker {tracker}", must, got, where="settings", do=do) from None


def quiet_stdout() -> redirect_stdout[Any]:
    """Return a block in which printed lines go to standard error: standard output is for the results of a command."""
    return redirect_stdout(sys.stderr)
