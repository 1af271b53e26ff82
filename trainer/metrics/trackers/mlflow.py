"""MLflow: a tracking server, a database or a folder."""

import posixpath
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Final, TypeVar

from envgym.runs.changes import leaves_of
from envgym.trainer.metrics.trackers.base import TrackedRun, Tracker, load_package
from envgym.trainer.metrics.trackers.sender import Sender
from envgym.trainer.metrics.update import Metrics

T = TypeVar("T")

_MAX_METRICS, _MAX_PARAMS, _MAX_VALUE, _MAX_KEY = 1000, 100, 6000, 250
"""MLflow's limits: metrics a batch, parameters a batch, characters of a parameter's value, characters of a name."""
_REFUSED: Final = re.compile(r"[^\w.\-:/ ]")


class MLflow(Tracker):
    """Log to MLflow. Rows are sent in a thread: a store takes 20 to 60 ms for 200 metrics."""

    NAME: ClassVar[str] = "mlflow"

    def __init__(self, *, uri: str | None = None, experiment: str = "envgym") -> None:
        """Name the store and the experiment.

        Args:
            uri: Tracking URI, such as `http://host:5000` or `sqlite:///mlflow.db`; None: as the variable
                MLFLOW_TRACKING_URI says, else MLflow's default.
            experiment: Name of the experiment. It is created if it does not exist.

        Raises: SettingsError: the package is not installed.
        """
        super().__init__()
        self._mlflow = load_package("mlflow", tracker=self.NAME, package="mlflow-skinny", extra="mlflow")
        self._uri, self._experiment = uri, experiment
        self._run_id = ""
        self._sender: Sender | None = None

    @cached_property
    def _client(self) -> Any:  # MlflowClient
        return self._mlflow.MlflowClient(tracking_uri=self._uri)

    def create_run(self, name: str) -> str:
        return str(self._client.create_run(self._experiment_id(), run_name=name).info.run_id)

    def open_run(self, run: TrackedRun) -> None:
        self._run_id, self._sender = run.id, None
        self._client.update_run(self._run_id, status="RUNNING")
        self._log_settings(run.config)
        self._sender = Sender(self._log, name=self.NAME)

    def send(self, step: int, metrics: Metrics) -> None:
        assert self._sender is not None, "a run begins with on_start"
        self._sender.put(step, metrics)

    def steps_of(self, metric: str) -> Collection[int]:
        """Return the steps at which the run has a metric."""
        return {item.step for item in self._client.get_metric_history(self._run_id, mlflow_name(metric))}

    def close_run(self, *, failed: bool) -> None:
        try:
            if self._sender is not None:
                self._sender.close()
        finally:
            self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")

    def _experiment_id(self) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(self._experiment))

    def _log(self, step: int, metrics: Metrics) -> None:
        metric = self._mlflow.entities.Metric
        now_ms = round(time.time() * 1000)
        rows = [metric(mlflow_name(name), float(value), now_ms, step) for name, value in metrics.items()]
        for batch in _batches(rows, _MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=batch)

    def _log_settings(self, config: Mapping[str, Any]) -> None:
        """Write settings as parameters. MLflow keeps those of the first start; changed ones become tags `now.KEY`."""
        param, tag = self._mlflow.entities.Param, self._mlflow.entities.RunTag
        params = self._client.get_run(self._run_id).data.params
        values = {mlflow_name(key): str(value)[:_MAX_VALUE] for key, value in leaves_of(config).items()}
        for new in _batches([param(key, value) for key, value in values.items() if key not in params], _MAX_PARAMS):
            self._client.log_batch(self._run_id, params=new)
        changed = [
            tag(f"now.{key}"[:_MAX_KEY], value) for key, value in values.items() if params.get(key, value) != value
        ]
        for tags in _batches(changed, _MAX_PARAMS):
            self._client.log_batch(self._run_id, tags=tags)


def mlflow_name(name: str) -> str:
    """Return a name that MLflow takes: at most 250 letters, digits, `_-.: /`, and no path such as `a//b` or `../a`.

    Another character becomes `_` and its hexadecimal code point, so that names which differ in it stay apart.
    """
    safe = _REFUSED.sub(_escape, name)[:_MAX_KEY]
    normal = posixpath.normpath(safe)
    if normal != safe or normal == "." or normal.startswith(("/", "..")):
        safe = re.sub(r"[./]", _escape, safe)[:_MAX_KEY]
    return safe or "_"


def _escape(match: re.Match[str]) -> str:
    return f"_{ord(match[0]):x}"


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
