"""What trackers share: one run of the tracker for one run directory, also after resumes, with every step in it."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Lock, Thread
from typing import Any, ClassVar, Final

from envgym.agents.evaluation.play import EvalRecord
from envgym.config.masking import masked
from envgym.errors import RunError, SettingsError
from envgym.runs.directory import RunDirectory, read_object
from envgym.runs.files import write_json
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.evaluation import evaluation_metrics
from envgym.trainer.metrics.update import Metrics

FOLDER: Final = "trackers"
"""Folder of a run directory with a file per tracker: the id of the tracker's run, and the number of starts."""
ATTEMPT: Final = "run/attempt"
"""Metric that every train step has in addition: number of the tracker's starts, from 1. Repeated steps differ in it."""


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
    """Number of the tracker's starts in the run directory, this one included. One that fails does not count."""
    id: str
    """Id of the tracker's run, as `create_run` returned it."""


class Tracker(Callback, ABC):
    """Base of the trackers: sends every step and every evaluation to one run of the tracker.

    A resumed run continues the tracker's run. It first sends what the run directory has recorded and the tracker lacks:
    steps that a kill or an outage cut off, or all steps if the tracker was added later. Steps after the checkpoint are
    made again and sent again, with another `run/attempt`.
    """

    NAME: ClassVar[str]
    """Name in `run.trackers`."""
    LIMIT_S: ClassVar[float | None] = 60.0
    """Longest time in seconds that a run waits for the tracker to start, and to end; None: it waits for ever."""

    def __init__(self) -> None:
        self._attempt, self._is_open, self._lock = 0, False, Lock()

    # ---- what a tracker implements ---------------------------------------------------------------------------

    @abstractmethod
    def create_run(self, name: str) -> str:
        """Create the tracker's run, or only its id; return the id. It is called once for a run directory."""

    @abstractmethod
    def open_run(self, run: TrackedRun) -> None:
        """Begin to write to the tracker's run with `run.id`."""

    @abstractmethod
    def send(self, step: int, metrics: Metrics) -> None:
        """Add a row of metrics at a train step."""

    @abstractmethod
    def steps_of(self, metric: str) -> Collection[int] | None:
        """Return the steps at which the tracker's run has a metric; None if that cannot be read."""

    @abstractmethod
    def close_run(self, *, failed: bool) -> None:
        """Send what is not sent yet, and mark the tracker's run as finished or failed, also where `open_run` failed."""

    # ---- callbacks -------------------------------------------------------------------------------------------

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        """Open the tracker's run and send recorded steps that it lacks.

        Raises: whatever the package raises; RunError: it takes longer than `LIMIT_S`.
        """
        self._call("start", partial(self._start, directory, config, first_step))

    def on_step(self, step: int, metrics: Metrics) -> None:
        self.send(step, {ATTEMPT: float(self._attempt), **metrics})

    def on_evaluation(self, step: int, label: str, metrics: Metrics) -> None:
        self.send(step, _labelled(label, metrics))

    def on_end(self, report: Path | None) -> None:
        """Close the tracker's run, as failed if there is no report."""
        self._call("end", partial(self._end, failed=report is None))

    def _start(self, directory: Path, config: Mapping[str, Any], first_step: int) -> None:
        file, name = directory / FOLDER / f"{self.NAME}.json", config["run"]["name"]
        saved = read_object(file) if file.exists() else {}
        attempts = saved.get("attempts", 0)
        if "id" not in saved:
            saved = {"id": self.create_run(name), "attempts": attempts}
            write_json(file, saved)  # before anything else can fail: the next start continues this run
        self._attempt, self._is_open, run_id = attempts + 1, True, saved["id"]
        self.open_run(
            TrackedRun(
                directory=directory,
                name=name,
                config=masked(config),
                first_step=first_step,
                attempt=self._attempt,
                id=run_id,
            )
        )
        write_json(file, {"id": run_id, "attempts": self._attempt})
        if first_step:
            self._send_missing(RunDirectory(directory), first_step)

    def _end(self, *, failed: bool) -> None:
        if self._is_open:
            self._is_open = False
            self.close_run(failed=failed)

    def _call(self, what: str, work: Callable[[], None]) -> None:
        """Do work in a thread, after earlier work that is still under way, and wait for it as long as the limit says.

        Lines that the package prints meanwhile go to standard error: standard output is for the results of a command.
        """
        errors = list[BaseException]()

        def run() -> None:
            try:
                with self._lock:
                    work()
            except BaseException as error:  # noqa: BLE001  # of the package; the waiting thread raises it
                errors.append(error)

        thread = Thread(target=run, name=f"tracker-{self.NAME}-{what}", daemon=True)
        with redirect_stdout(sys.stderr):
            thread.start()
            thread.join(self.LIMIT_S)
        if thread.is_alive():
            must, do = f"{what} within {self.LIMIT_S} s", "see that its server answers, then resume the run"
            raise RunError.of(f"tracker {self.NAME}", must, "no answer", where="run.trackers", do=do)
        if errors:
            raise errors[0]

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


def load_package(module: str, *, tracker: str, package: str, extra: str) -> Any:  # a module without types
    """Import the package of a tracker, which an extra of envgym installs.

    Raises: SettingsError: it is not installed, or lacks a package itself.
    """
    try:
        return import_module(module)
    except ImportError as error:
        got = "no such package" if error.name == module else str(error)
        do = f"run `pip install 'envgym[{extra}]'`, or leave it out of run.trackers"
        must = f"have the {package} package installed"
        raise SettingsError.of(f"tracker {tracker}", must, got, where="settings", do=do) from None
