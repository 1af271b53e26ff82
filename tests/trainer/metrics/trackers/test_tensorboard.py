"""Event files, read back by TensorBoard's own reader."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]  # none given
    EventAccumulator,
)

from envgym.runs.directory import RunDirectory
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.trackers import tensorboard
from envgym.trainer.metrics.trackers.tensorboard import TensorBoard

CONFIG = {"run": {"name": "cat"}}


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def steps(tracker: Callback, *numbers: int, offset: float = 0.0) -> None:
    for step in numbers:
        tracker.on_step(step, {"train/success": step / 4 + offset})


def test_event_files_hold_every_number(tmp_path: Path) -> None:
    tracker = TensorBoard()
    tracker.on_start(tmp_path, CONFIG, 0, 2)
    tracker.on_evaluation(0, "held-out", {"success": 0.5})
    steps(tracker, 1, 2)
    tracker.on_end(None)
    assert scalars(tmp_path, "train/success") == [(1, 0.25), (2, 0.5)]
    assert scalars(tmp_path, "held-out/success") == [(0, 0.5)]


def test_steps_that_a_resumed_run_repeats_replace_the_earlier_ones(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="cat", config=CONFIG)
    tracker = TensorBoard()
    tracker.on_start(run.path, CONFIG, 0, 4)
    steps(tracker, 1, 2, 3)
    killed = TensorBoard()  # without on_end: the events of every step are in the file
    killed.on_start(run.path, CONFIG, 2, 4)
    steps(killed, 3, 4, offset=0.125)
    assert scalars(run.path, "train/success") == [(1, 0.25), (2, 0.5), (3, 0.875), (4, 1.125)]
    tracker.on_end(None)
    killed.on_end(None)


def test_files_that_begin_at_a_resume_hold_the_recorded_steps(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="cat", config=CONFIG)
    for step in (1, 2):
        run.append_metrics({"step": step, "train/success": step / 4})
    tracker = TensorBoard()
    tracker.on_start(run.path, CONFIG, 2, 4)
    steps(tracker, 3)
    tracker.on_end(None)
    assert scalars(run.path, "train/success") == [(1, 0.25), (2, 0.5), (3, 0.75)]


def test_nothing_is_written_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    tracker = TensorBoard()
    tracker.on_start(tmp_path, CONFIG, 0, 2)
    steps(tracker, 1)
    tracker.on_end(None)
    assert not (tmp_path / "tensorboard").exists()
