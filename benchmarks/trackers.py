"""What a train step costs a run's trackers: milliseconds that `on_step` blocks the training thread, with 200 metrics.

Run: python -m benchmarks.trackers [--metrics 200] [--steps 50] [--trackers tensorboard wandb mlflow trackio]. Prints
one JSON line: the median step of each tracker, and the median time of a step in MLflow's thread (`mlflow_thread_ms`).
Every store is local: event files, offline W&B, and folders; MLFLOW_TRACKING_URI names another one for MLflow.
Target on two idle cores: at most 5 ms.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks._options import print_result, read_options
from envgym.config.plugins import Choice
from envgym.trainer.metrics.callbacks import TRACKER
from envgym.trainer.metrics.trackers.mlflow import MLflow

TARGET_MS: Final = 5.0
NAMES: Final = ("tensorboard", "wandb", "mlflow", "trackio")
_SETTINGS: Final[dict[str, dict[str, Any]]] = {"wandb": {"project": "speed", "mode": "offline"}}
_REST_S: Final = 0.2
"""Pause between steps: a training works meanwhile, and threads of trackers get time."""


class TimedMLflow(MLflow):
    """MLflow with the times of its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.thread_ms = list[float]()

    def _log(self, step: int, metrics: dict[str, float]) -> None:
        self.thread_ms.append(milliseconds(lambda: super(TimedMLflow, self)._log(step, metrics)))


def milliseconds(call: Callable[[], object]) -> float:
    """Return the wall time of a call in milliseconds."""
    begun = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begun)


def measure(name: str, folder: Path, *, num_metrics: int, num_steps: int) -> dict[str, float]:
    """Return the median time of a step in milliseconds; the first step, which opens files, is left out."""
    tracker = TimedMLflow() if name == "mlflow" else TRACKER.build(Choice(name=name, **_SETTINGS.get(name, {})))
    tracker.on_start(folder / name, {"run": {"name": "speed"}}, 0, num_steps)
    times_ms = list[float]()
    for step in range(1, num_steps + 2):
        metrics = {f"part/metric_{number}": step / (number + 1) for number in range(num_metrics)}
        times_ms.append(milliseconds(lambda step=step, metrics=metrics: tracker.on_step(step, metrics)))  # type: ignore[misc]
        time.sleep(_REST_S)
    tracker.on_end(folder)
    figures = {name: round(median(times_ms[1:]), 2)}
    if isinstance(tracker, TimedMLflow):
        figures["mlflow_thread"] = round(median(tracker.thread_ms[1:]), 2)
    return figures


def main() -> None:
    options = read_options(__doc__, metrics=200, steps=50, trackers=NAMES)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        folder = Path(path)
        stores = {"TRACKIO_DIR": f"{folder}/store", "MLFLOW_TRACKING_URI": f"file://{folder}/mlruns"}
        for name, value in {**stores, "MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_SILENT": "true"}.items():
            os.environ.setdefault(name, value)
        figures: dict[str, float] = {}
        for name in options.trackers:
            (folder / name).mkdir()
            figures |= measure(name, folder, num_metrics=options.metrics, num_steps=options.steps)
    thread_ms = figures.pop("mlflow_thread", None)
    print_result("trackers", blocked_ms=figures, mlflow_thread_ms=thread_ms, target_ms=TARGET_MS)


if __name__ == "__main__":
    main()
