"""Weights & Biases, online or offline (`mode: offline`, or WANDB_MODE=offline)."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import uuid4

from envgym.errors import SettingsError
from envgym.trainer.metrics.trackers.base import TrackedRun, Tracker, load_package
from envgym.trainer.metrics.trackers.sender import Sender
from envgym.trainer.metrics.trackers.wandb_files import read_rows
from envgym.trainer.metrics.update import Metrics

STEP_AXIS: Final = "train/step"
"""Metric that holds the train step, and the axis of all other metrics. W&B drops rows whose own step does not grow."""
_ROWS_PER_ATTEMPT: Final = 1_000_000
"""W&B's own step begins here times the earlier starts: offline runs are joined later, and it must grow across them."""


_MODES: Final = (None, "online", "offline")


class Wandb(Tracker):
    """Log to Weights & Biases. Rows are logged in a thread: W&B takes about 5 ms for 200 metrics."""

    NAME: ClassVar[str] = "wandb"

    def __init__(self, project: str, *, entity: str | None = None, mode: str | None = None) -> None:
        """Name the project.

        Args:
            project: Name of the project that the run is logged to.
            entity: Team or user that the project belongs to; None: the default one of the account.
            mode: `online` or `offline`; None: as the variable WANDB_MODE says, else online.

        Raises: SettingsError: the package is not installed, or `mode` is another word.
        """
        super().__init__()
        do = "leave it out to use the variable WANDB_MODE"
        SettingsError.unless(mode in _MODES, "mode", "be online or offline", mode, where="tracker wandb", do=do)
        self._wandb = load_package("wandb", tracker=self.NAME, package="wandb", extra="wandb")
        self._settings = {"project": project, "entity": entity, "mode": mode}
        self._run: Any = None  # wandb.Run
        self._row, self._is_new, self._directory = 0, True, Path()
        self._sender: Sender | None = None
        self._held: list[dict[str, Any]] | None = None
        """Rows in the files of earlier starts, once read."""

    def create_run(self, name: str) -> str:
        return uuid4().hex[:16]

    def open_run(self, run: TrackedRun) -> None:
        self._is_new, self._row = run.attempt == 1, (run.attempt - 1) * _ROWS_PER_ATTEMPT
        self._run, self._sender, self._directory, self._held = None, None, run.directory, None
        self._run = self._wandb.init(
            **self._settings,
            name=run.name,
            config=dict(run.config),
            dir=str(run.directory),
            id=run.id,
            resume="allow",
            settings=self._wandb.Settings(
                init_timeout=self.LIMIT_S,
                finish_timeout=self.LIMIT_S,
                finish_timeout_raises=True,
                x_disable_meta=True,  # it would hold the command line, with its secrets
            ),
        )
        self._run.define_metric(STEP_AXIS, hidden=True)
        self._run.define_metric("*", step_metric=STEP_AXIS)
        self._sender = Sender(self._log, name=self.NAME)

    def send(self, step: int, metrics: Metrics) -> None:
        assert self._sender is not None, "a run begins with on_start"
        self._sender.put(step, metrics)

    def steps_of(self, metric: str) -> Collection[int]:
        """Return the steps at which the run has a metric, from its files if it is offline, else from W&B."""
        if self._is_new:
            return ()
        if not self._run.offline:
            rows = self._wandb.Api().run(self._run.path).scan_history(keys=[STEP_AXIS, metric])
            return {int(row[STEP_AXIS]) for row in rows}
        if self._held is None:
            files = self._directory.glob(f"wandb/*/run-{self._run.id}.wandb")
            self._held = [row for file in sorted(files) for row in read_rows(file)]
        return {int(row[STEP_AXIS]) for row in self._held if metric in row and STEP_AXIS in row}

    def close_run(self, *, failed: bool) -> None:
        try:
            if self._sender is not None:
                self._sender.close()
        finally:
            if self._run is not None:
                self._run.finish(exit_code=int(failed))

    def _log(self, step: int, metrics: Metrics) -> None:
        self._run.log({STEP_AXIS: step, **metrics}, step=self._row, commit=True)
        self._row += 1
