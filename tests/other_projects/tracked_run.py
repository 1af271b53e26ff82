"""A run with four trackers, in a process of its own that can be killed: the train loop's calls alone, or a training.

python -m tests.other_projects.tracked_run loop DIRECTORY FIRST LAST (kill | finish | fail)
python -m tests.other_projects.tracked_run train DIRECTORY LAST (kill | finish)
"""

import os
import signal
import sys
from pathlib import Path

from envgym.config.plugins import Choice
from envgym.runs.directory import RunDirectory
from envgym.trainer.metrics.callbacks import Callback, Callbacks
from envgym.trainer.metrics.trackers.guard import build_trackers
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.train import train
from tests.support.credit_trees import chain
from tests.support.tiny_runs import tiny_settings

PROJECT = "cats"
ODD = "odd name@2/"
"""A metric whose name MLflow refuses."""


def trackers() -> Callback:
    """Return the four trackers, each of which must work."""
    choices = [
        Choice(name="tensorboard", required=True),
        Choice(name="wandb", project=PROJECT, mode="offline", required=True),
        Choice(name="mlflow", experiment=PROJECT, required=True),
        Choice(name="trackio", project=PROJECT, episodes=2, required=True),
    ]
    return Callbacks(build_trackers(choices))


def loop(folder: Path, first: int, last: int, ending: str) -> None:
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
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    callbacks.on_end(folder / "report.html" if ending == "finish" else None)


class KillAfter(Callback):
    """Kills the process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, step: int, metrics: Metrics) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def training(folder: Path, last: int, ending: str) -> None:
    """Train a tiny model, or go on with it."""
    settings = tiny_settings(folder, run={"steps": last, "name": "cat"})
    extra = [KillAfter(last)] if ending == "kill" else []
    steps = {"steps": last + (ending == "kill")}
    settings = settings.model_copy(update={"run": settings.run.model_copy(update=steps)})
    train(settings, callbacks=[trackers(), *extra], resume=(folder / "run.json").exists())


if __name__ == "__main__":
    mode, directory, *rest, how = sys.argv[1:]
    if mode == "loop":
        loop(Path(directory), int(rest[0]), int(rest[1]), how)
    else:
        training(Path(directory), int(rest[0]), how)
