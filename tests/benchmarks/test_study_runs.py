"""Runs of studies: a budget ends them, they are made once, and their records are right by hand."""

from pathlib import Path

import pytest

from benchmarks._study_runs import Budget, Run, make_runs
from benchmarks._token_budget import TokenBudget
from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.trainer.methods.controllers.base import ControlContext

TINY = {
    "sft": None,
    "rollout.groups": 1,
    "rollout.group_size": 2,
    "model.tiny.num_layers": 1,
    "agent.max_turn_tokens": 8,
    "agent.on_length": "close",
    "canary.enabled": False,
    "evaluation.tasks": 2,
}


def run_of(name: str, tokens: int, **sets: object) -> Run:
    settings = {**TINY, **{key.replace("__", "."): value for key, value in sets.items()}}
    command = ("train", "studies/methods/guess_number.yaml")
    budget = Budget(tokens=tokens)
    return Run.model_validate({"name": name, "command": command, "set": settings, "budget": budget, "key": {"seed": 0}})


def fake(path: Path, steps: list[tuple[float, float]], solved: list[float | None] | None, *, at: int) -> None:
    """Write a run of steps (tokens, success in training) that solved these held-out tasks after step `at`."""
    run = RunDirectory.create(path, name="fake", config={})
    for number, (tokens, share) in enumerate(steps, start=1):
        costs = {"cost/tokens_generated": tokens / 4, "cost/tokens_prefilled": tokens * 3 / 4}
        run.append_metrics({"step": number, "train/success": share, "time/step_s": 2.0, **costs})
    if solved is not None:
        rewards = {f"t{number}": [value] for number, value in enumerate(solved)}
        run.write_eval(at, "held-out", {"step": at, "label": "held-out", "success_at": 1.0, "rewards": rewards})


def context(step: int, tokens: float) -> ControlContext:
    metrics = {"cost/tokens_generated": tokens, "cost/tokens_prefilled": 10.0}
    return ControlContext(step=step, settings={}, metrics=metrics)


def test_a_run_stops_after_the_step_that_reaches_the_budget_also_when_resumed(tmp_path: Path) -> None:
    before = TokenBudget(tokens=100)
    control = before.after_step(context(1, 40.0))
    assert control is not None
    assert (control.stop, control.metrics) == (None, {"spent": 50.0})
    before.save(tmp_path)
    after = TokenBudget(tokens=100)
    after.load(tmp_path)
    control = after.after_step(context(2, 40.0))
    assert control is not None
    assert (control.stop, control.metrics) == ("100 tokens are spent", {"spent": 100.0})


def test_record_by_hand(tmp_path: Path) -> None:
    fake(tmp_path / "whole", [(100, 0.25), (300, 0.75)], [1, 0.9, 1, None], at=2)
    record = run_of("whole", 400).record(tmp_path, metric="success", by_task=False)
    assert record is not None
    # (100 * .25 + 300 * .75) / 400
    assert (record["points"], record["training"]) == ([[400.0, 0.5]], 0.625)
    assert (record["tokens"], record["prefilled"], record["steps"], record["seconds"]) == (400, 300, 2, 4.0)
    assert run_of("whole", 401).record(tmp_path, metric="success", by_task=False) is None
    fake(tmp_path / "unfinished", [(100, 0.25), (300, 0.75)], None, at=2)
    assert not run_of("unfinished", 400).is_whole(tmp_path)


def test_tokens_that_a_critic_reads_are_recorded_by_task(tmp_path: Path) -> None:
    run = Run(name="search", command=("eval", "--model", "m"), critic="value", key={"arm": "beam"})
    fake(tmp_path / "search", [], [1, 0], at=0)
    assert not run.is_whole(tmp_path)
    (tmp_path / "search" / "reads.json").write_text('{"tokens_read": 120}')
    (path,) = (tmp_path / "search" / "evals").iterdir()
    path.write_text(path.read_text().replace('"step"', '"costs": {"turns": 2.0}, "step"', 1))
    record = run.record(tmp_path, metric="success", by_task=True)
    assert record is not None
    assert record["evaluations"][0]["costs"] == {"turns": 2.0, "value_reads": 60.0}


def test_a_run_trains_until_its_tokens_are_spent_and_is_made_once(tmp_path: Path) -> None:
    run = run_of("run", 400)
    run.make(tmp_path)
    record = run.record(tmp_path, metric="success", by_task=False)
    assert record is not None
    assert record["tokens"] >= 400
    assert record["points"][0][0] == 0.0
    assert record["points"][-1][0] == record["tokens"]
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    run.make(tmp_path)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    with pytest.raises(RunError, match="resumed settings must be those of the run, got changes in"):
        run_of("run", 400, optim__lr=0.5).make(tmp_path)


def test_failed_run_names_its_log_and_ends_the_study(tmp_path: Path) -> None:
    failing = run_of("failing", 400, model__name=str(tmp_path / "missing"))
    later = run_of("later", 400).model_copy(update={"stage": 1})
    (error,) = make_runs([later, failing], tmp_path, jobs=1)
    assert "run must end well, got code" in error
    assert "must" in (tmp_path / "failing.log").read_text()
    assert not (tmp_path / "later").exists()
