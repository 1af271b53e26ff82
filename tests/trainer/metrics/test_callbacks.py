"""Callbacks: who is told what, in which order, and what reaches the terminal and the disk."""

import math
import re
import time
from pathlib import Path
from typing import Any

import pytest

from envgym.runs.wall_time import WallClock, read_wall_time
from envgym.trainer.metrics.callbacks import (
    Callback,
    Callbacks,
    EpisodeCounter,
    LiveProgress,
    TimeKeeper,
)
from tests.support.credit_trees import chain

EVALUATION = {"success": 0.5, "success_low": 0.25, "success_high": 0.75, "tasks": 40.0, "invalid": 0.0, "seconds": 1.0}


def a_run(callback: Callback, directory: Path, *, report: Path | None = None) -> None:
    callback.on_start(directory, {"run": {"name": "cat"}}, 0, 2)
    callback.on_progress("collect", 1, 2, "half")
    callback.on_evaluation(0, "held-out", EVALUATION)
    for step in (1, 2):
        callback.on_step(step, {"train/success": step / 4, "loss/entropy": 1.25, "other/number": 9.0})
    callback.on_progress("collect", 2, 2, "half")
    callback.on_end(report)


class Recorder(Callback):
    """Writes down what it is told."""

    def __init__(self, name: str, told: list[str]) -> None:
        self._name, self._told = name, told

    def __getattribute__(self, name: str) -> Any:  # a method of the base, or an attribute
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def told(*arguments: object) -> None:
            self._told.append(f"{self._name} {name} {len(arguments)}")

        return told


def test_callback_without_methods_says_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(Callback(), tmp_path)
    assert (capsys.readouterr(), list(tmp_path.iterdir())) == (("", ""), [])


def test_evaluation_without_a_valid_episode_is_shown_as_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = LiveProgress()
    progress.on_start(tmp_path, {"run": {"name": "cat"}}, 0, 2)
    progress.on_evaluation(0, "held-out", {**EVALUATION, "success": math.nan})
    progress.on_end(None)
    shown = capsys.readouterr()
    assert "(held-out, 40 tasks): no valid episode" in shown.out + shown.err


def test_several_are_told_everything_in_their_order(tmp_path: Path) -> None:
    told: list[str] = []
    a_run(Callbacks([Recorder("a", told), Recorder("b", told)]), tmp_path)
    alone: list[str] = []
    a_run(Recorder("a", alone), tmp_path)
    assert told[0::2] == alone
    assert told[1::2] == [line.replace("a ", "b ", 1) for line in alone]
    assert len(alone) == 7


def test_progress_is_one_line_per_step_where_nobody_watches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(LiveProgress(), Path("runs/cat"), report=Path("runs/cat/report.html"))
    out, err = capsys.readouterr()
    assert out == ""
    assert re.sub(r"about \d+ s", "about 9 s", err).splitlines() == [
        "run directory: runs/cat",
        "evaluation after 0 steps (held-out, 40 tasks): success 50.0% [25.0%, 75.0%]",
        "step    1/2  success 0.25  entropy 1.25, about 9 s left",
        "step    2/2  success 0.5  entropy 1.25",
    ]


def test_progress_that_never_started_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    LiveProgress().on_end(None)
    assert capsys.readouterr().err == ""


def test_time_is_recorded_after_every_step_and_evaluation_and_at_the_end(tmp_path: Path) -> None:
    class Clock(WallClock):
        num_records = 0

        def record(self) -> None:
            super().record()
            self.num_records += 1

    clock = Clock(tmp_path, device="1 CPU core", started=time.perf_counter())
    a_run(TimeKeeper(clock), tmp_path)
    assert clock.num_records == 4
    assert [item.device for item in read_wall_time(tmp_path)] == ["1 CPU core"]


def test_resume_of_a_run_that_is_over_adds_no_time(tmp_path: Path) -> None:
    keeper = TimeKeeper(WallClock(tmp_path, device="1 CPU core", started=time.perf_counter()))
    keeper.on_start(tmp_path, {}, 2, 2)
    keeper.on_end(None)
    assert read_wall_time(tmp_path) == ()
    keeper.on_progress("collect", 1, 2)  # interrupted in its first step
    keeper.on_end(None)
    assert len(read_wall_time(tmp_path)) == 1


def test_episodes_are_counted_up_to_those_of_a_step_and_groups_are_told_beside_them() -> None:
    told = list[tuple[object, ...]]()

    class Listener(Callback):
        def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
            told.append((phase, done, total, detail))

    counter, tree = EpisodeCounter(Listener(), "collect", 3), chain("t", [1.0])
    counter(tree)
    counter.count_groups(1, 7)
    for _ in range(3):
        counter(tree)
    assert told == [
        ("collect", 0, 3, ""),
        ("collect", 1, 3, ""),
        ("collect", 1, 3, "groups: 1 finished, 7 open"),
        *(("collect", done, 3, "groups: 1 finished, 7 open") for done in (2, 3, 3)),
    ]
