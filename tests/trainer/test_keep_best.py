"""`run.keep_best`: the best checkpoint stays beside the newest ones, through interruptions and resumes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import envgym.trainer.workflows.best_checkpoint as best_checkpoint
from envgym.api import trained_model
from envgym.core.trajectory import Trajectory
from envgym.errors import RunError, SettingsError
from envgym.report.from_run import report_of_run
from envgym.runs.best import BestCheckpoint, read_best, write_best
from envgym.runs.directory import RunDirectory
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.settings import EVALUATION_METRICS, TrainSettings
from envgym.trainer.train import TrainLoop, train
from tests.support.tiny_runs import StopAfter, step_metrics, tiny_settings

PLANNED = (0.1, 0.5, 0.9, 0.3, 0.9, 0.2)
"""Value of the metric after each number of train steps."""


def planned(episodes: Sequence[Trajectory]) -> dict[str, float]:
    (version,) = {
        segment.policy_version
        for episode in episodes
        for row in episode.rows
        for segment in row.segments
        if segment.policy_version is not None
    }
    return {"planned": PLANNED[version]}


def unmeasured(episodes: Sequence[Trajectory]) -> dict[str, float]:
    return {}


def settings(directory: Path, *, metric: str = "metric/planned", plugin: str = "planned", **run: Any) -> TrainSettings:
    """Return a run of five steps, evaluated after each, that keeps its newest checkpoint alone."""
    return tiny_settings(
        directory,
        run={"steps": 5, "checkpoint_every": 1, "keep_checkpoints": 1, "keep_best": metric, **run},
        evaluation={"tasks": 2, "tasks_during": 1, "every": 1, "metrics": [f"tests.trainer.test_keep_best:{plugin}"]},
    )


def saved(directory: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in sorted((directory / "checkpoints").iterdir())]


@pytest.mark.parametrize("every", [1, 10])
def test_the_best_checkpoint_stays_beside_the_newest_whenever_checkpoints_are_made(every: int, tmp_path: Path) -> None:
    train(settings(tmp_path, checkpoint_every=every))
    assert read_best(tmp_path) == BestCheckpoint(step=2, metric="metric/planned", mode="max", value=0.9)
    assert saved(tmp_path) == [2, 5]
    assert trained_model(tmp_path / "checkpoints" / "step-000002")["model"]["train_steps"] == 2
    assert report_of_run(RunDirectory.open(tmp_path)).meta.best_checkpoint == "step 2, metric/planned 0.9"
    labels = {(data["label"], data["step"]) for data in RunDirectory.open(tmp_path).evals()}
    assert labels == {("held-out", 0), ("held-out", 5), *(("during", step) for step in range(6))}


def test_the_smallest_value_is_the_best_where_the_mode_says_so(tmp_path: Path) -> None:
    train(settings(tmp_path, keep_best_mode="min"))
    assert (best := read_best(tmp_path)) is not None
    assert (best.step, best.value) == (0, 0.1)
    assert saved(tmp_path) == [0, 5]


def test_a_full_evaluation_of_the_same_tasks_is_not_made_twice(tmp_path: Path) -> None:
    own = settings(tmp_path)
    same = own.model_copy(update={"evaluation": own.evaluation.model_copy(update={"tasks_during": 2})})
    train(same)
    labels = {(data["label"], data["step"]) for data in RunDirectory.open(tmp_path).evals()}
    assert labels == {("held-out", 0), ("held-out", 5), *(("during", step) for step in range(1, 5))}
    assert (best := read_best(tmp_path)) is not None
    assert best.step == 2


def test_a_resumed_run_keeps_the_same_best_checkpoint_and_makes_the_same_steps(tmp_path: Path) -> None:
    """It is resumed from a checkpoint that was made for the evaluation alone, with groups of later steps under way."""

    def ahead(directory: Path) -> TrainSettings:
        own = settings(directory, checkpoint_every=10)
        rollout = own.rollout.model_copy(update={"staleness": 1, "groups": 3})
        return own.model_copy(update={"rollout": rollout})

    train(ahead(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        train(ahead(tmp_path / "cut"), callbacks=[StopAfter(3)])
    assert saved(tmp_path / "cut") == [2]
    train(ahead(tmp_path / "cut"), resume=True)
    assert read_best(tmp_path / "cut") == read_best(tmp_path / "whole")
    assert saved(tmp_path / "cut") == [2, 5]
    whole, cut = (
        [{key: value for key, value in row.items() if not key.startswith(("cost/", "journal/"))} for row in rows]
        for rows in (step_metrics(tmp_path / "whole"), step_metrics(tmp_path / "cut"))
    )
    assert cut == whole


def test_a_run_killed_between_its_checkpoint_and_the_name_gives_the_name_when_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(run: Path, best: BestCheckpoint) -> None:
        if best.step == 2:
            raise KeyboardInterrupt
        write_best(run, best)

    monkeypatch.setattr(best_checkpoint, "write_best", killed)
    with pytest.raises(KeyboardInterrupt):
        train(settings(tmp_path))
    assert (before := read_best(tmp_path)) is not None
    assert before.step == 1
    monkeypatch.undo()
    train(settings(tmp_path), resume=True)
    assert (after := read_best(tmp_path)) is not None
    assert after.step == 2
    assert saved(tmp_path) == [2, 5]


def test_another_metric_of_a_resumed_run_begins_without_a_best_checkpoint(tmp_path: Path) -> None:
    train(settings(tmp_path, steps=4))
    train(settings(tmp_path, keep_best_mode="min", steps=5), resume=True)
    assert read_best(tmp_path) == BestCheckpoint(step=5, metric="metric/planned", mode="min", value=0.2)
    assert saved(tmp_path) == [5]


def test_another_best_of_a_finished_run_is_refused_because_no_evaluation_follows(tmp_path: Path) -> None:
    train(settings(tmp_path))
    best = read_best(tmp_path)
    with pytest.raises(RunError, match=r"run.keep_best_mode must stay .*, got min in place of max .*raise run.steps"):
        train(settings(tmp_path, keep_best_mode="min"), resume=True)
    assert read_best(tmp_path) == best
    assert RunDirectory(tmp_path).config["run"]["keep_best_mode"] == "max"


def test_a_metric_that_the_first_evaluation_lacks_is_refused_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"run.keep_best must be a metric of the evaluations, got metric/planed"):
        train(settings(tmp_path, metric="metric/planed"))
    assert RunDirectory.open(tmp_path).episode_steps() == []


@pytest.mark.parametrize(
    "every, metric, told",
    [
        (0, "success", r"run.keep_best must be used with evaluations between the steps, got evaluation.every=0"),
        (1, "sucess", r"run.keep_best must be success, success_low, .* or metric/NAME .*, got sucess"),
        (1, "metric/iqm", r"got metric/iqm \(run\); name one of those, or add the metric to evaluation.metrics"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_settings(every: int, metric: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        tiny_settings(run={"keep_best": metric}, evaluation={"every": every})


def test_every_evaluation_has_the_metrics_that_settings_may_name(tmp_path: Path) -> None:
    train(tiny_settings(tmp_path, run={"steps": 1, "keep_best": "success"}, evaluation={"every": 1}))
    (best,) = [read_best(tmp_path)]
    assert best is not None
    assert 0 <= best.value <= 1
    assert set(EVALUATION_METRICS) == {"success", "success_low", "success_high", "invalid"}


def test_the_mean_over_environments_counts_and_one_without_the_metric_makes_none() -> None:
    mean = best_checkpoint.mean_over_envs
    assert mean([{"success": 0.25}, {"success": 0.75}], "success") == 0.5  # (1/4 + 3/4) / 2
    assert math.isnan(mean([{"success": 0.25}, {}], "success"))
    assert math.isnan(mean([], "success"))


@pytest.mark.parametrize("mode", ["max", "min"])
def test_an_evaluation_with_too_many_invalid_episodes_is_never_the_best(mode: str, tmp_path: Path) -> None:
    def evaluation(success: float, invalid_share: float) -> dict[str, float]:
        return {"success": success, "invalid_share": invalid_share}

    run = tiny_settings(run={"keep_best": "success", "keep_best_mode": mode}, evaluation={"every": 1}).run
    keeper = best_checkpoint.BestCheckpointKeeper(run, tmp_path, max_invalid_rate=0.5)
    assert keeper.candidate([evaluation(1.0, 0.9)], 0) is None  # one valid episode of ten
    assert keeper.candidate([evaluation(0.5, 0.0), evaluation(0.0, 0.6)], 1) is None
    assert keeper.candidate([evaluation(math.nan, 1.0)], 2) is None
    assert (best := keeper.candidate([evaluation(0.25, 0.5)], 3)) is not None
    assert (best.step, best.value) == (3, 0.25)


def test_a_damaged_file_ends_the_resumed_run_as_failed_and_closes_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(settings(tmp_path, steps=1))
    (tmp_path / "best.json").write_text("{")
    called, close = list[object](), TrainLoop._close

    async def closed(loop: TrainLoop) -> None:
        called.append("closed")
        await close(loop)

    class Ends(Callback):
        def on_end(self, report: Path | None) -> None:
            called.append(report)

    monkeypatch.setattr(TrainLoop, "_close", closed)
    with pytest.raises(RunError, match=r"best\.json"):
        train(settings(tmp_path, steps=2), callbacks=[Ends()], resume=True)
    assert called == ["closed", None]


@pytest.mark.parametrize("mode, better, worse", [("max", 0.6, 0.4), ("min", 0.4, 0.6)])
def test_only_a_strictly_better_finite_value_beats_the_best(mode: str, better: float, worse: float) -> None:
    best = BestCheckpoint(step=1, metric="success", mode=mode, value=0.5)
    assert best.is_beaten_by(better)
    assert not any(map(best.is_beaten_by, (worse, 0.5, math.nan, math.inf, -math.inf)))


@pytest.mark.parametrize("text", ['{"step": 1}', "[]", "{", '{"step": 1, "metric": "a", "mode": "up", "value": 1}'])
def test_a_damaged_file_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(RunError, match=r"best\.json"):
        read_best(tmp_path)
