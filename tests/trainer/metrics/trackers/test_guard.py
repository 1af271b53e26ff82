"""A tracker that fails never ends a training, unless it is required."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envgym.cli.main import main
from envgym.config.plugins import Choice
from envgym.errors import RunError, SettingsError, UnknownName
from envgym.trainer.launch import ranks
from envgym.trainer.metrics.callbacks import Callback, Callbacks
from envgym.trainer.metrics.trackers.guard import GuardedTracker, build_trackers
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.train import train
from tests.support.tiny_runs import tiny_settings

CONFIG = {"run": {"name": "cat"}}


def choice(**settings: object) -> Choice:
    return Choice.model_validate(settings)


class Failing(Callback):
    """Fails in the methods that are named; keeps what was called."""

    def __init__(self, *failing: str, error: type[BaseException] = OSError) -> None:
        self.failing, self.error, self.called = failing, error, list[str]()

    def _call(self, name: str) -> None:
        self.called.append(name)
        if name in self.failing:
            raise self.error("disk full")

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        self._call("start")

    def on_step(self, step: int, metrics: Metrics) -> None:
        self._call("step")

    def on_end(self, report: Path | None) -> None:
        self._call("end")


def run(tracker: Callback, folder: Path) -> None:
    tracker.on_start(folder, CONFIG, 0, 3)
    for step in (1, 2, 3):
        tracker.on_step(step, {"loss": 1.0})
    tracker.on_end(folder / "report.html")


@pytest.mark.parametrize(
    "failing,called",
    [
        (("start",), ["start", "end"]),
        (("step",), ["start", "step", "end"]),
        (("step", "end"), ["start", "step", "end"]),
        (("end",), ["start", "step", "step", "step", "end"]),
    ],
)
def test_failure_is_one_warning_and_the_tracker_is_off(
    tmp_path: Path, failing: tuple[str, ...], called: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Failing(*failing)
    with caplog.at_level(logging.WARNING):
        run(GuardedTracker("disk", tracker), tmp_path)
    assert tracker.called == called
    assert [record.getMessage() for record in caplog.records] == [
        "tracker disk failed and is off: OSError: disk full. Training continues. metrics.jsonl of the run directory "
        "has every step, and a resumed run starts the tracker again"
    ]


@pytest.mark.parametrize("failing", ["start", "step", "end"])
def test_required_tracker_ends_the_training(tmp_path: Path, failing: str) -> None:
    with pytest.raises(RunError, match=r"tracker disk must work, got OSError: disk full \(run.trackers\); correct it"):
        run(GuardedTracker("disk", Failing(failing), is_required=True), tmp_path)


def test_interrupt_in_a_tracker_is_no_failure_of_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(GuardedTracker("disk", Failing("step", error=KeyboardInterrupt)), tmp_path)


def test_next_run_of_a_pipeline_starts_a_tracker_that_was_off(tmp_path: Path) -> None:
    tracker = Failing("start")
    guarded = GuardedTracker("disk", tracker)
    run(guarded, tmp_path)
    tracker.failing = ()
    run(guarded, tmp_path)
    assert tracker.called == ["start", "end", "start", "step", "step", "step", "end"]


def test_tracker_that_never_started_is_not_ended() -> None:
    tracker = Failing()
    GuardedTracker("disk", tracker).on_end(None)
    assert tracker.called == []


def test_all_callbacks_end_though_one_raises(tmp_path: Path) -> None:
    first, second = Failing("end"), Failing()
    with pytest.raises(OSError, match="disk full"):
        run(Callbacks([first, second]), tmp_path)
    assert first.called[-1] == second.called[-1] == "end"


def test_training_with_a_failing_tracker_is_that_without(tmp_path: Path) -> None:
    tracker = Failing("step")
    assert train(tiny_settings(tmp_path / "a"), callbacks=[GuardedTracker("disk", tracker)]).steps == 2
    assert tracker.called == ["start", "step", "end"]


def test_training_whose_required_tracker_cannot_start_samples_nothing(tmp_path: Path) -> None:
    other = Failing()
    trackers = [other, GuardedTracker("disk", Failing("start"), is_required=True)]
    with pytest.raises(RunError, match="tracker disk must work"):
        train(tiny_settings(tmp_path / "a"), callbacks=trackers)
    assert other.called == ["start", "end"]
    assert not (tmp_path / "a" / "metrics.jsonl").exists()


# ---- settings --------------------------------------------------------------------------------------------------------


def test_trackers_are_built_in_order_and_required_is_no_setting_of_theirs() -> None:
    trackers = build_trackers([Choice(name="progress"), choice(name="tensorboard", required=True)])
    assert [type(tracker) for tracker in trackers] == [GuardedTracker, GuardedTracker]


@pytest.mark.parametrize(
    "choices,kind,sentence",
    [
        ([Choice(name="mlfow")], UnknownName, "did you mean mlflow"),
        ([Choice(name="progress"), Choice(name="progress")], SettingsError, "run.trackers must list each tracker once"),
        ([choice(name="progress", required="yes")], SettingsError, "required must be true or false, got yes"),
        (
            [choice(name="tensorboard", folder="x")],
            SettingsError,
            r"settings key must be known, got folder \(tracker tensorboard\); leave it out",
        ),
    ],
)
def test_bad_settings_are_one_sentence(choices: list[Choice], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        build_trackers(choices)


def test_only_rank_0_has_trackers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    run = {"directory": str(tmp_path / "run"), "trackers": ["nowhere:Tracker"]}
    file.write_text(json.dumps({"run": run, "envs": [{"id": "math/arithmetic-v0"}]}))
    followed = list[int]()
    monkeypatch.setattr(ranks, "follow", lambda meeting, **options: followed.append(meeting.rank))
    variables = {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in {**variables, "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", str(file)]) == 0
    assert followed == [1]
    for name in (*variables, "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "RANK"):
        monkeypatch.delenv(name)
    assert main(["train", str(file)]) == 2
    assert "tracker.name must name an importable class, got nowhere:Tracker" in capsys.readouterr().err
