"""What trackers ask of their packages. The real packages are tested in tests/other_projects/test_trackers.py."""

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from envgym.core.turns import Invalid
from envgym.errors import RunError, SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.trackers.mlflow import MLflow, mlflow_name
from envgym.trainer.metrics.trackers.trackio import Trackio, conversation, facts
from envgym.trainer.metrics.trackers.wandb import Wandb
from tests.support.credit_trees import chain, group_of
from tests.support.example_trees import branch_after_a_tool_call, invalid_branch

CONFIG = {"run": {"name": "cat", "steps": 3}}


def a_run(tracker: Callback, folder: Path, first: int = 0, last: int = 2, *, has_report: bool = True) -> None:
    tracker.on_start(folder, CONFIG, first, last)
    for step in range(first + 1, last + 1):
        tracker.on_step(step, {"loss": step / 4})
    tracker.on_end(folder / "report.html" if has_report else None)


@pytest.mark.parametrize(
    "make,name,package",
    [(lambda: Wandb("p"), "wandb", "wandb"), (MLflow, "mlflow", "mlflow-skinny"), (Trackio, "trackio", "trackio")],
)
def test_package_that_is_missing_is_one_sentence(
    make: Callable[[], Callback], name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError) as refused:
        make()
    assert str(refused.value) == (
        f"tracker {name} must have the {package} package installed, got no such package (settings); run "
        f"`pip install 'envgym[{name}]'`, or leave it out of run.trackers."
    )


# ---- Weights & Biases ------------------------------------------------------------------------------------------------


class WandbDouble(SimpleNamespace):
    """Keeps what it is called with; online."""

    offline, is_down = False, False
    path = "me/p/id"

    def __init__(self) -> None:
        self.opened, self.rows, self.axes = list[dict[str, Any]](), list[tuple[int, dict[str, float]]](), list[str]()
        self.codes = list[int]()
        self.history = list[dict[str, float]]()

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **settings: Any) -> "WandbDouble":
        if self.is_down:
            raise OSError("no route")
        self.opened.append(settings)
        return self

    def define_metric(self, name: str, **options: Any) -> None:
        self.axes.append(f"{name} {options}")

    def log(self, row: dict[str, float], *, step: int, commit: bool) -> None:
        assert commit
        self.rows.append((step, row))

    def finish(self, *, exit_code: int) -> None:
        self.codes.append(exit_code)

    def Api(self) -> "WandbDouble":
        return self

    def run(self, path: str) -> "WandbDouble":
        assert path == self.path
        return self

    def scan_history(self, keys: list[str]) -> list[dict[str, float]]:
        return [row for row in self.history if row.keys() >= set(keys)]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> WandbDouble:
    double = WandbDouble()
    monkeypatch.setitem(sys.modules, "wandb", double)
    return double


def test_wandb_has_the_train_step_as_axis_and_steps_that_grow(tmp_path: Path, wandb: WandbDouble) -> None:
    for has_report in (False, True):
        a_run(Wandb("p", entity="me", mode="offline"), tmp_path, has_report=has_report)
    first, second = wandb.opened
    assert (first["id"], first["resume"]) == (second["id"], "allow")
    assert (first["project"], first["entity"], first["mode"], first["name"]) == ("p", "me", "offline", "cat")
    settings = {"init_timeout": 60.0, "finish_timeout": 60.0, "finish_timeout_raises": True, "x_disable_meta": True}
    assert first["settings"].items() >= settings.items(), "with its metadata it would store the command line"
    assert wandb.axes[:2] == ["train/step {'hidden': True}", "* {'step_metric': 'train/step'}"]
    assert wandb.rows == [
        (number, {"train/step": step, "run/attempt": attempt, "loss": step / 4})
        for number, step, attempt in ((0, 1, 1.0), (1, 2, 1.0), (1_000_000, 1, 2.0), (1_000_001, 2, 2.0))
    ]
    assert wandb.codes == [1, 0]


def test_wandb_logs_in_a_thread_and_ends_with_the_last_row(
    tmp_path: Path, wandb: WandbDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open, log = Event(), wandb.log

    def slow_log(row: dict[str, float], *, step: int, commit: bool) -> None:
        assert is_open.wait(60)
        log(row, step=step, commit=commit)

    monkeypatch.setattr(wandb, "log", slow_log)
    tracker = Wandb("p")
    tracker.on_start(tmp_path, {"run": {"name": "cat"}}, 0, 3)
    for step in (1, 2, 3):
        tracker.on_step(step, {"loss": 0.5})
    assert wandb.rows == []
    is_open.set()
    tracker.on_end(None)
    assert [(number, row["train/step"]) for number, row in wandb.rows] == [(0, 1), (1, 2), (2, 3)]
    assert wandb.codes == [1]


def test_wandb_online_is_sent_what_it_lacks(tmp_path: Path, wandb: WandbDouble) -> None:
    run = RunDirectory.create(tmp_path / "run", name="cat", config=CONFIG)
    a_run(Wandb("p"), run.path)
    for step in (1, 2):
        run.append_metrics({"step": step, "loss": step / 4})
    wandb.history = [{"train/step": 1, "loss": 0.25}]
    wandb.rows.clear()
    a_run(Wandb("p"), run.path, 2, 3)
    assert [row["train/step"] for _, row in wandb.rows] == [2, 3]


def test_runs_of_two_directories_are_two_at_wandb(tmp_path: Path, wandb: WandbDouble) -> None:
    for name in ("a", "b"):
        a_run(Wandb("p"), tmp_path / name)
    assert len({settings["id"] for settings in wandb.opened}) == 2


def test_wandb_that_cannot_start_has_nothing_to_close_and_starts_later(tmp_path: Path, wandb: WandbDouble) -> None:
    wandb.is_down, tracker = True, Wandb("p")
    with pytest.raises(OSError, match="no route"):
        tracker.on_start(tmp_path, CONFIG, 0, 1)
    tracker.on_end(None)
    wandb.is_down = False
    a_run(tracker, tmp_path)
    assert [step for step, _ in wandb.rows] == [0, 1]
    assert wandb.codes == [0]


def test_wandb_mode_that_does_not_exist_is_refused(wandb: WandbDouble) -> None:
    with pytest.raises(SettingsError, match="mode must be online or offline, got ofline"):
        Wandb("p", mode="ofline")


# ---- MLflow ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,expected",
    [
        ("train/success", "train/success"),
        ("a b_c-d.e:f", "a b_c-d.e:f"),
        ("held-out/pass@4", "held-out/pass_404"),
        ("a#b", "a_23b"),
        ("a//b", "a_2f_2fb"),
        ("/a", "_2fa"),
        ("a/", "a_2f"),
        ("../a", "_2e_2e_2fa"),
        (".", "_2e"),
        ("", "_"),
        ("x" * 300, "x" * 250),
    ],
)
def test_names_are_those_that_mlflow_takes(name: str, expected: str) -> None:
    assert mlflow_name(name) == expected


class MLflowDouble(SimpleNamespace):
    """A store without one that fails."""

    def __init__(self) -> None:
        def entity(*values: Any) -> tuple[Any, ...]:
            return values

        self.entities = SimpleNamespace(Metric=entity, Param=entity, RunTag=entity)
        self.uris, self.batches, self.statuses = list[Any](), list[dict[str, Any]](), list[str]()
        self.params = dict[str, str]()

    def MlflowClient(self, *, tracking_uri: str | None) -> "MLflowDouble":
        self.uris.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"experiment {name}"

    def create_run(self, experiment: str, *, run_name: str) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id=f"{run_name} of {experiment}"))

    def get_run(self, run_id: str) -> Any:
        return SimpleNamespace(data=SimpleNamespace(params=dict(self.params)))

    def update_run(self, run_id: str, *, status: str) -> None:
        self.statuses.append(status)

    def log_batch(self, run_id: str, **batch: Any) -> None:
        assert run_id == "cat of experiment cats"
        self.params.update(batch.get("params", ()))
        self.batches.append(batch)

    def set_terminated(self, run_id: str, status: str) -> None:
        print("View run at http://host")
        self.statuses.append(status)


def test_mlflow_gets_settings_once_and_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    double = MLflowDouble()
    monkeypatch.setitem(sys.modules, "mlflow", double)
    a_run(MLflow(uri="http://host", experiment="cats"), tmp_path, has_report=False)
    double.params["run.steps"] = "2"  # as if the run was made longer
    a_run(MLflow(uri="http://host", experiment="cats"), tmp_path)
    assert double.uris == ["http://host"] * 2
    assert double.statuses == ["RUNNING", "FAILED", "RUNNING", "FINISHED"]
    assert [batch["params"] for batch in double.batches if "params" in batch] == [
        [("run.name", "cat"), ("run.steps", "3")]
    ]
    assert [batch["tags"] for batch in double.batches if "tags" in batch] == [[("now.run.steps", "3")]]
    rows = [batch["metrics"] for batch in double.batches if "metrics" in batch]
    assert [[(name, value, step) for name, value, _, step in row] for row in rows] == [
        [("run/attempt", attempt, step), ("loss", step / 4, step)] for attempt in (1.0, 2.0) for step in (1, 2)
    ]
    assert capsys.readouterr().out == ""


def test_mlflow_run_whose_start_failed_ends_as_failed_and_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = MLflowDouble()
    monkeypatch.setitem(sys.modules, "mlflow", double)
    tracker = MLflow(experiment="cats")

    def refused(run_id: str, **batch: Any) -> None:
        raise OSError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(double, "log_batch", refused)
        with pytest.raises(OSError, match="no route"):
            tracker.on_start(tmp_path, CONFIG, 0, 2)
    tracker.on_end(None)
    monkeypatch.setattr(double, "create_run", refused)  # no second run is made
    a_run(tracker, tmp_path)
    assert double.statuses == ["RUNNING", "FAILED", "RUNNING", "FINISHED"]


def test_mlflow_gets_at_most_a_thousand_metrics_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    double = MLflowDouble()
    monkeypatch.setitem(sys.modules, "mlflow", double)
    tracker = MLflow(experiment="cats")
    tracker.on_start(tmp_path, CONFIG, 0, 1)
    tracker.on_step(1, {f"m{number}": 0.0 for number in range(1500)})
    tracker.on_end(None)
    assert [len(batch["metrics"]) for batch in double.batches if "metrics" in batch] == [1000, 501]


# ---- trackio ---------------------------------------------------------------------------------------------------------


class TrackioDouble(SimpleNamespace):
    """Keeps rows, and loses the last ones where it is told to."""

    def __init__(self, folder: Path, *, loses: bool = False) -> None:
        self.TRACKIO_DIR, self.loses = str(folder), loses
        self.opened, self.rows, self.name = list[dict[str, Any]](), list[dict[str, Any]](), ""
        self.AlertLevel, self.alerts = SimpleNamespace(ERROR="error"), list[dict[str, str]]()
        self.utils = SimpleNamespace(
            resolve_space_id_and_server_url=lambda space_id, server_url: (space_id, server_url)
        )
        self.SQLiteStorage = SimpleNamespace(get_logs=lambda project, run: [] if self.loses else self.rows)
        self.Trace = lambda messages, metadata: (messages, metadata)

    def init(self, **settings: Any) -> "TrackioDouble":
        print("* Trackio project initialized")
        self.opened.append(settings)
        self.name = settings["name"]
        return self

    def log(self, row: dict[str, Any], *, step: int) -> None:
        self.rows.append({**row, "step": step})

    def alert(self, **alert: str) -> None:
        self.alerts.append(alert)

    def finish(self) -> None:
        print("* Run finished")


def test_trackio_gets_rows_with_a_few_episodes_and_prints_nothing_to_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    double = TrackioDouble(tmp_path / "store")
    monkeypatch.setitem(sys.modules, "trackio", double)
    tracker = Trackio(project="cats", episodes=2)
    tracker.on_start(tmp_path, CONFIG, 0, 2)
    tracker.on_episodes(1, [chain(f"t{number}", [number / 4]) for number in range(4)])
    for step in (1, 2):
        tracker.on_step(step, {"loss": step / 4})
    tracker.on_end(None)
    a_run(tracker, tmp_path)
    assert [alert["title"] for alert in double.alerts] == ["run failed"]
    first, second = double.opened
    assert (first["project"], first["resume"], first["name"]) == ("cats", "allow", second["name"])
    assert first["name"].startswith("cat-")
    episodes = double.rows[0].pop("episodes")
    assert [metadata["episode"] for _, metadata in episodes] == ["t0", "t2"]
    assert double.rows[:2] == [{"step": step, "run/attempt": 1.0, "loss": step / 4} for step in (1, 2)]
    assert capsys.readouterr().out == ""


def test_trackio_that_lost_the_last_row_fails_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", TrackioDouble(tmp_path, loses=True))
    with pytest.raises(RunError, match=r"trackio must have stored the last row, got no such row"):
        a_run(Trackio(), tmp_path)


def test_trackio_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setitem(sys.modules, "trackio", TrackioDouble(tmp_path / "file" / "store"))
    with pytest.raises(RunError, match=r"trackio's folder must be writable, got .*; set the variable TRACKIO_DIR"):
        a_run(Trackio(), tmp_path)


def test_trackio_refuses_a_negative_number_of_episodes() -> None:
    with pytest.raises(SettingsError, match="episodes must be at least 0, got -1"):
        Trackio(episodes=-1)


def test_trace_of_an_episode_is_its_conversation() -> None:
    first, _ = group_of(branch_after_a_tool_call()).trajectories
    called, shown, done = conversation(first)
    assert called["role"] == done["role"] == "assistant"
    (call,) = called["tool_calls"]
    assert call["function"] == {"name": "calculator", "arguments": '{"expression": "6*7"}'}
    assert shown["content"] == "42"
    assert done["content"] == "done"
    assert facts(first, 3) == {
        "env": "math/arithmetic-v0",
        "task": first.tree.task_id,
        "episode": "branch_after_a_tool_call",
        "step": 3,
        "ending": "TERMINATED",
        "turns": 2,
        "status": "ok",
        "reward": 1.0,
    }


def test_invalid_episode_has_a_reason_and_no_reward() -> None:
    invalid = [item for item in group_of(invalid_branch()).trajectories if isinstance(item.reward, Invalid)]
    shown = facts(invalid[0], 1)
    assert (shown["status"], "reward" in shown) == ("error", False)
    assert shown["error"]
