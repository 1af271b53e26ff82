"""A run that ends early and is resumed is one run in every tracker, read back by each package."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import pytest
import trackio
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]  # none given
    EventAccumulator,
)

from envgym.runs.directory import RunDirectory
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.trackers.guard import GuardedTracker
from envgym.trainer.metrics.trackers.mlflow import MLflow, mlflow_name
from envgym.trainer.metrics.trackers.trackio import Trackio
from envgym.trainer.metrics.trackers.wandb_files import read_rows

pytestmark = [
    pytest.mark.connect,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(600),  # two processes that import torch and all packages, on a busy machine
]
ROOT = Path(__file__).resolve().parents[2]
PROJECT = "cats"
Rows = list[tuple[int, float]]
"""Step and value, in order."""


def environment(folder: Path) -> dict[str, str]:
    """Return variables that keep every package in a folder and off the network."""
    return {
        "TRACKIO_DIR": str(folder / "trackio"),
        "MLFLOW_TRACKING_URI": f"file://{folder / 'mlruns'}",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
    }


def call(folder: Path, *words: object) -> int:
    command = [sys.executable, "-m", "tests.other_projects.tracked_run", *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment(folder)}, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, -signal.SIGKILL):
        print(done.stderr)
    assert done.stdout == ""
    return done.returncode


class Readers:
    """Reads what the packages have stored of the runs in a folder, of which each has one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in environment(folder).items():
            monkeypatch.setenv(name, value)
        for module in (trackio.utils, trackio.sqlite_storage):
            monkeypatch.setattr(module, "TRACKIO_DIR", folder / "trackio")
        self.folder = folder
        self.client = mlflow.MlflowClient()

    def tensorboard(self, metric: str) -> Rows:
        events = EventAccumulator(str(self.folder / "run" / "tensorboard"))
        events.Reload()
        return [(event.step, event.value) for event in events.Scalars(metric)]

    @property
    def mlflow_run(self) -> Any:  # mlflow.entities.Run
        experiment = self.client.get_experiment_by_name(PROJECT)
        (run,) = self.client.search_runs([experiment.experiment_id])
        return run

    def mlflow(self, metric: str) -> Rows:
        history = self.client.get_metric_history(self.mlflow_run.info.run_id, mlflow_name(metric))
        return [(item.step, item.value) for item in history]

    @property
    def trackio_run(self) -> Any:  # trackio.api.Run
        (run,) = trackio.Api().runs(PROJECT)
        return run

    def trackio(self, metric: str) -> Rows:
        rows = trackio.SQLiteStorage.get_logs(PROJECT, self.trackio_run.name)
        return [(row["step"], row[metric]) for row in rows if metric in row]

    @property
    def wandb_files(self) -> list[Path]:
        """The files of a run that is not synchronized yet: one for each start."""
        files = sorted((self.folder / "run" / "wandb").glob("offline-run-*/*.wandb"))
        assert len({file.name for file in files}) == 1, "one id"
        return files

    def wandb(self, metric: str) -> Rows:
        rows = [row for file in self.wandb_files for row in read_rows(file)]
        numbers = [row["_step"] for row in rows]
        assert numbers == sorted(set(numbers)), "W&B drops rows whose step does not grow"
        return [(row["train/step"], row[metric]) for row in rows if metric in row]

    def all(self, metric: str) -> Mapping[str, Rows]:
        read = (self.tensorboard, self.mlflow, self.trackio, self.wandb)
        return {method.__name__: method(metric) for method in read}


def test_training_that_is_killed_and_resumed_has_every_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(tmp_path, "train", tmp_path / "run", "kill") == -signal.SIGKILL
    assert call(tmp_path, "train", tmp_path / "run", "finish") == 0
    readers = Readers(tmp_path, monkeypatch)
    run = RunDirectory.open(tmp_path / "run")
    for metric in ("reward/mean", "train/rows", "optim/updates"):
        expected = [(int(row["step"]), row[metric]) for row in run.metrics() if row["step"] > 0]
        for name, rows in readers.all(metric).items():
            assert [step for step, _ in rows] == [1, 2, 3, 4, 5], name
            assert [value for _, value in rows] == pytest.approx([value for _, value in expected]), name
    for name, rows in readers.all("held-out/success").items():
        assert [step for step, _ in rows] == [0, 5], name
    assert readers.mlflow_run.info.status == "FINISHED"


def test_repeated_steps_are_kept_apart_and_a_failed_run_ends_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(tmp_path, "loops", tmp_path / "run") == 0
    readers = Readers(tmp_path, monkeypatch)
    once = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    for name, rows in readers.all("odd name@2/").items():
        assert sorted(set(rows)) == once, name
        assert len(rows) == (4 if name == "tensorboard" else 5), name
    for name, rows in readers.all("run/attempt").items():
        repeated = [(3, 2.0)] if name == "tensorboard" else [(3, 1.0), (3, 2.0)]
        assert sorted(rows) == [(1, 1.0), (2, 1.0), *repeated, (4, 2.0)], name
    assert not any(b"sk-0123456789" in file.read_bytes() for file in readers.wandb_files), "command line and settings"
    run = readers.mlflow_run
    assert run.info.status == "FAILED"
    assert [alert["title"] for alert in readers.trackio_run.alerts()] == ["run failed"]
    assert run.data.params == {"run.name": "cat", "run.steps": "3", "model.api_key": "***"}
    assert run.data.tags["now.run.steps"] == "4"
    traces = trackio.SQLiteStorage.get_traces(PROJECT, readers.trackio_run.name, sort="step_asc")
    assert [trace["step"] for trace in traces] == [1, 1, 2, 2, 3, 3, 3, 3, 4, 4]
    assert traces[0]["metadata"].items() >= {"status": "ok", "ending": "TERMINATED", "turns": 1}.items()
    assert traces[0]["messages"] == [{"role": "assistant", "content": "act 1"}]


def test_store_that_cannot_be_used_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Readers(tmp_path, monkeypatch)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(trackio, "TRACKIO_DIR", tmp_path / "file" / "trackio")
    bad: dict[str, Callback] = {"mlflow": MLflow(uri=f"file://{tmp_path}/file/mlruns"), "trackio": Trackio()}
    for name, tracker in bad.items():
        caplog.clear()
        guarded = GuardedTracker(name, tracker)
        guarded.on_start(tmp_path, {"run": {"name": "cat"}}, 0, 1)
        guarded.on_step(1, {"loss": 1.0})
        guarded.on_end(None)
        warnings = [record.getMessage() for record in caplog.records if "tracker" in record.getMessage()]
        assert len(warnings) == 1, name
        assert warnings[0].startswith(f"tracker {name} failed and is off: ")
