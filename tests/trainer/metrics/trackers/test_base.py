"""One run of a tracker for one run directory, with every recorded step in it."""

from collections.abc import Collection
from pathlib import Path
from threading import Event
from typing import ClassVar

import pytest

from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.trainer.metrics.trackers.base import ATTEMPT, TrackedRun, Tracker
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.train import train
from tests.support.tiny_runs import StopAfter, tiny_settings

CONFIG = {"run": {"name": "cat"}, "model": {"api_key": "abc"}}


class Memory(Tracker):
    """Keeps rows of runs by their id, as a service does."""

    NAME: ClassVar[str] = "memory"

    def __init__(self, rows: dict[str, list[tuple[int, Metrics]]], *, can_read: bool = True) -> None:
        super().__init__()
        self.rows, self.can_read = rows, can_read
        self.opened, self.closed = list[TrackedRun](), list[bool]()
        self.created = list[str]()

    def create_run(self, name: str) -> str:
        self.created.append(name)
        return f"id-{len(self.rows)}"

    def open_run(self, run: TrackedRun) -> None:
        self.opened.append(run)
        self.id = run.id
        self.rows.setdefault(self.id, [])

    def send(self, step: int, metrics: Metrics) -> None:
        self.rows[self.id].append((step, metrics))

    def steps_of(self, metric: str) -> Collection[int] | None:
        return {step for step, row in self.rows[self.id] if metric in row} if self.can_read else None

    def close_run(self, *, failed: bool) -> None:
        self.closed.append(failed)


def record(folder: Path, *steps: int) -> RunDirectory:
    run = RunDirectory.create(folder, name="cat", config=CONFIG)
    for step in steps:
        run.append_metrics({"step": step, "train/success": step / 4, "train/rows": 2.0})
    return run


def test_run_has_an_id_a_number_of_starts_and_settings_without_secrets(tmp_path: Path) -> None:
    tracker = Memory({})
    for first in (0, 0):
        tracker.on_start(tmp_path, CONFIG, first, 2)
        tracker.on_end(tmp_path / "report.html")
    assert [(run.id, run.attempt, run.name) for run in tracker.opened] == [("id-0", 1, "cat"), ("id-0", 2, "cat")]
    assert tracker.created == ["cat"]
    assert tracker.opened[0].config == {"run": {"name": "cat"}, "model": {"api_key": "***"}}
    assert (tmp_path / "trackers" / "memory.json").read_text() == '{\n "id": "id-0",\n "attempts": 2\n}\n'


class Broken(Memory):
    """Cannot open its run at the first start."""

    def open_run(self, run: TrackedRun) -> None:
        super().open_run(run)
        if len(self.opened) == 1:
            raise OSError("no route")


def test_start_that_fails_leaves_a_run_that_ends_as_failed_and_the_next_start_continues(tmp_path: Path) -> None:
    record(tmp_path, 1, 2)
    tracker = Broken({})
    with pytest.raises(OSError, match="no route"):
        tracker.on_start(tmp_path, CONFIG, 0, 2)
    tracker.on_end(None)
    assert tracker.closed == [True]
    tracker.on_start(tmp_path, CONFIG, 2, 3)
    assert (tracker.created, [(run.id, run.attempt) for run in tracker.opened]) == (["cat"], [("id-0", 1)] * 2)
    assert [(step, row[ATTEMPT]) for step, row in tracker.rows["id-0"]] == [(1, 1.0), (2, 1.0)]


class Hanging(Memory):
    """Gets no answer, when it starts or ends, until it is released."""

    LIMIT_S: ClassVar[float | None] = 0.0

    def __init__(self, place: str) -> None:
        super().__init__({})
        self.place, self.has_begun, self.released, self.has_closed = place, Event(), Event(), Event()

    def open_run(self, run: TrackedRun) -> None:
        self.has_begun.set()
        assert self.place != "start" or self.released.wait(60)
        super().open_run(run)

    def close_run(self, *, failed: bool) -> None:
        assert self.place != "end" or self.released.wait(60)
        super().close_run(failed=failed)
        self.has_closed.set()


def test_training_waits_for_a_start_no_longer_than_the_limit_and_the_run_is_closed_later(tmp_path: Path) -> None:
    tracker = Hanging("start")
    must = r"tracker memory must {} within 0.0 s, got no answer \(run.trackers\)"
    with pytest.raises(RunError, match=must.format("start")):
        tracker.on_start(tmp_path, CONFIG, 0, 2)
    assert tracker.has_begun.wait(60)
    with pytest.raises(RunError, match=must.format("end")):
        tracker.on_end(None)
    assert tracker.closed == []
    tracker.released.set()
    assert tracker.has_closed.wait(60)
    assert (len(tracker.opened), tracker.closed) == (1, [True])


def test_end_waits_for_a_tracker_no_longer_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Hanging("end")
    monkeypatch.setattr(Hanging, "LIMIT_S", None)
    tracker.on_start(tmp_path, CONFIG, 0, 2)
    monkeypatch.setattr(Hanging, "LIMIT_S", 0.0)
    with pytest.raises(RunError, match=r"tracker memory must end within 0.0 s"):
        tracker.on_end(tmp_path / "report.html")
    tracker.released.set()
    assert tracker.has_closed.wait(60)
    assert tracker.closed == [False]


def test_rows_have_the_number_of_the_start_and_evaluations_their_label(tmp_path: Path) -> None:
    tracker = Memory({})
    tracker.on_start(tmp_path, CONFIG, 0, 2)
    tracker.on_evaluation(0, "held-out", {"success": 0.5})
    tracker.on_step(1, {"loss": 1.0})
    assert tracker.rows["id-0"] == [(0, {"held-out/success": 0.5}), (1, {ATTEMPT: 1.0, "loss": 1.0})]


@pytest.mark.parametrize("has_report", [True, False])
def test_run_without_report_ends_as_failed_and_once(tmp_path: Path, has_report: bool) -> None:
    tracker = Memory({})
    tracker.on_end(None)
    tracker.on_start(tmp_path, CONFIG, 0, 2)
    for _ in range(2):
        tracker.on_end(tmp_path / "report.html" if has_report else None)
    assert tracker.closed == [not has_report]


@pytest.mark.parametrize("held,sent", [((1, 2, 3), []), ((1,), [2, 3]), ((), [1, 2, 3]), ((1, 3), [2])])
def test_resumed_run_sends_the_steps_that_the_tracker_lacks(
    tmp_path: Path, held: tuple[int, ...], sent: list[int]
) -> None:
    record(tmp_path, 1, 2, 3, 4)
    rows: dict[str, list[tuple[int, Metrics]]] = {}
    tracker = Memory(rows)
    tracker.on_start(tmp_path, CONFIG, 0, 5)
    rows["id-0"] += [(step, {"train/rows": 2.0}) for step in held]
    tracker.on_start(tmp_path, CONFIG, 3, 5)
    assert rows["id-0"][len(held) :] == [
        (step, {ATTEMPT: 2.0, "train/success": step / 4, "train/rows": 2.0}) for step in sent
    ]


def test_tracker_that_is_added_at_a_resume_gets_all_steps(tmp_path: Path) -> None:
    record(tmp_path, 1, 2)
    tracker = Memory({})
    tracker.on_start(tmp_path, CONFIG, 2, 5)
    assert [step for step, _ in tracker.rows["id-0"]] == [1, 2]


def test_nothing_is_sent_again_to_a_tracker_that_cannot_be_read(tmp_path: Path) -> None:
    record(tmp_path, 1, 2)
    tracker = Memory({}, can_read=False)
    tracker.on_start(tmp_path, CONFIG, 2, 5)
    assert tracker.rows == {"id-0": []}


def test_damaged_file_of_a_tracker_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "trackers").mkdir()
    (tmp_path / "trackers" / "memory.json").write_text('{"id": ')
    with pytest.raises(RunError, match=r"run file must be as envgym wrote it"):
        Memory({}).on_start(tmp_path, CONFIG, 0, 2)


def test_interrupted_training_is_one_run_with_every_step_and_evaluation_once(tmp_path: Path) -> None:
    rows: dict[str, list[tuple[int, Metrics]]] = {}
    sections = {"run": {"steps": 3}, "evaluation": {"every": 1, "tasks_during": 1}}
    tracker = Memory(rows)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_settings(tmp_path / "a", **sections), callbacks=[tracker, StopAfter(2)])
    assert tracker.closed == [True]
    del rows["id-0"][-1], rows["id-0"][0]  # an outage loses the second step and the first evaluation
    train(tiny_settings(tmp_path / "a", **sections), callbacks=[tracker], resume=True)
    (only,) = rows.values()
    assert sorted(step for step, row in only if "train/rows" in row) == [1, 2, 3]
    assert sorted(step for step, row in only if "held-out/success" in row) == [0, 3]
    assert sorted(step for step, row in only if "during/success" in row) == [1, 2]
    assert tracker.closed == [True, False]
