"""A run with four trackers, in a process of its own that can be killed: the train loop's calls alone, or a training.

python -m tests.other_projects.tracked_run loops DIRECTORY
python -m tests.other_projects.tracked_run train DIRECTORY (kill | finish)
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from envgym.config.plugins import Choice
from envgym.runs.directory import RunDirectory
from envgym.trainer.metrics.callbacks import Callback, Callbacks
from envgym.trainer.metrics.trackers.guard import build_trackers
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.train import train
from tests.support.credit_trees import chain
from tests.support.env_server import wait_until
from tests.support.tiny_runs import tiny_settings

PROJECT = "cats"
ODD = "odd name@2/"
"""A metric whose name MLflow refuses."""


def trackers() -> Callback:
    """Return the four trackers, each of which must work."""
    choices: list[dict[str, object]] = [
        {"name": "tensorboard"},
        {"name": "wandb", "project": PROJECT, "mode": "offline"},
        {"name": "mlflow", "experiment": PROJECT},
        {"name": "trackio", "project": PROJECT, "episodes": 2},
    ]
    return Callbacks(build_trackers([Choice.model_validate({**choice, "required": True}) for choice in choices]))


def loop(folder: Path, first: int, last: int, report: Path | None) -> None:
    """Make the calls of a train loop that begins after step `first`."""
    config = {"run": {"name": "cat", "steps": last}, "model": {"api_key": "sk-0123456789abcdefghij"}}
    run = RunDirectory.open(folder) if first else RunDirectory.create(folder, name="cat", config=config)
    run.forget_after(first)
    callbacks = trackers()
    callbacks.on_start(folder, config, first, last)
    for step in range(first + 1, last + 1):
        metrics: Metrics = {"train/success": step / 4, ODD: float(step), "train/none": float("nan")}
        run.append_metrics({"step": step, **metrics})
        callbacks.on_episodes(step, [chain(f"t{step}.{number}", [number / 4]) for number in range(3)])
        callbacks.on_step(step, metrics)
    callbacks.on_end(report)


class KillAfter(Callback):
    """Kills the process after a step, when MLflow has it: its store in files writes one metric after another."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        self.run_id = json.loads((directory / "trackers" / "mlflow.json").read_text())["id"]

    def on_step(self, step: int, metrics: Metrics) -> None:
        if step == self.step:
            last, client = next(reversed(metrics)), MlflowClient()
            wait_until(lambda: step in {item.step for item in client.get_metric_history(self.run_id, last)})
            os.kill(os.getpid(), signal.SIGKILL)


def training(folder: Path, ending: str) -> None:
    """Train a tiny model for five steps, or go on with it; `kill` the process after the third."""
    settings = tiny_settings(folder, run={"steps": 5, "name": "cat"})
    extra = [KillAfter(3)] if ending == "kill" else []
    train(settings, callbacks=[trackers(), *extra], resume=(folder / "run.json").exists())


if __name__ == "__main__":
    mode, directory, *rest = sys.argv[1:]
    if mode == "loops":
        sys.argv.append("--set=model.api_key=sk-0123456789abcdefghij")
        loop(Path(directory), 0, 3, Path(directory) / "report.html")
        loop(Path(directory), 2, 4, None)  # fails
    else:
        training(Path(directory), rest[0])
