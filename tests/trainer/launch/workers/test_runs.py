"""Whole runs with rollout workers: the numbers are those of one process, and a worker that dies costs no turn."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from envgym.errors import RunError, SettingsError
from envgym.trainer.train import train
from tests.support.env_server import wait_until
from tests.support.tiny_runs import step_metrics, tiny_settings
from tests.trainer.learner.ranks.test_runs import pids_of, started
from tests.trainer.test_recovery import NUM, check_counts, check_nothing_left, events, settings_file, temporary, total

__all__ = ["temporary"]
pytestmark = pytest.mark.processes
ONE_AT_A_TIME = {"device": "cpu", "threads": 1, "max_batch": 1}
"""Then no number depends on what is sampled side by side."""


def run_metrics(directory: Path, **launch: Any) -> list[dict[str, float]]:
    """Train three steps with a policy server, and return the metrics but for those of its prefix cache."""
    learning = {"objective": {"entropy_coef": 0.1}, "optim": {"lr": 0.03}, "rollout": {"groups": 3}}
    envs = [{"id": "tests.support.tiny_runs:EvenWords"}, {"id": "math/arithmetic-v0", "settings": {"level": 1}}]
    sections = {"engine": ONE_AT_A_TIME, "envs": envs, "run": {"steps": 3}, **learning}
    train(tiny_settings(directory, launch={"servers": 1, **launch}, **sections))
    return [
        {key: value for key, value in row.items() if key != "cost/tokens_prefilled"} for row in step_metrics(directory)
    ]


@pytest.mark.timeout(600)
def test_numbers_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    expected = run_metrics(tmp_path / "0")
    assert len(expected) == 3
    assert expected[0]["canary/moved"] > 1e-4
    for num_workers in (1, 2, 3, 4) if "ENVGYM_WORKERS_ALL" in os.environ else (1, 3):
        assert run_metrics(tmp_path / str(num_workers), rollout_workers=num_workers, env_servers=1) == expected


@pytest.mark.timeout(600)
def test_a_worker_that_is_killed_is_started_again_and_no_turn_is_sampled_twice(tmp_path: Path, temporary: Path) -> None:
    launch = {"servers": 1, "rollout_workers": 2}
    file = settings_file(tmp_path, launch, steps=4)
    turns = tmp_path / "ranks" / "journal" / "turns-00000001.rollout-worker-0.jsonl"
    with started(tmp_path, "train", str(file), "--set", "run.checkpoint_every=9") as (program, lines):
        assert any(line.startswith("step    1/") for line in lines)
        wait_until(lambda: turns.exists() and b"\n" in turns.read_bytes())
        os.kill(pids_of(tmp_path)["rollout-worker-0"], signal.SIGKILL)
        assert any(line.startswith("step    2/") for line in lines)
        files = turns.parent.glob("turns-00000001*.jsonl")  # which are there until the next checkpoint
        keys = Counter(json.loads(line)[0] for file in files for line in file.read_bytes().splitlines())
        sentences = [line for line in lines if line.startswith("envgym: ")]
        assert program.wait(300) == 0
    assert not sentences
    rows = check_counts(tmp_path, steps=4)
    assert [entry["process"] for entry in events(tmp_path, "restart")] == ["rollout-worker-0"]
    assert total(rows, "processes/restarts") == 1
    assert total(rows, "rollout/invalid") == 0
    assert rows[1]["rollout/reissued"] == total(rows, "rollout/reissued") >= 1
    assert rows[1]["journal/turns"] == total(rows, "journal/turns") >= 1
    assert set(keys.values()) == {1}
    assert len(keys) == NUM * 2  # two turns each
    check_nothing_left(tmp_path, temporary)


@pytest.mark.timeout(300)
def test_a_worker_that_dies_at_every_start_ends_the_run_with_one_sentence(tmp_path: Path, temporary: Path) -> None:
    file = settings_file(tmp_path, {"servers": 1, "rollout_workers": 1, "restarts": 1}, steps=20)
    with started(tmp_path, "train", str(file)) as (program, lines):
        assert any(line.startswith("step    1/") for line in lines)
        os.kill(pids_of(tmp_path)["rollout-worker-0"], signal.SIGKILL)
        wait_until(lambda: len(events(tmp_path, "restart")) == 1)
        os.kill(pids_of(tmp_path)["rollout-worker-0"], signal.SIGKILL)
        sentences = [line for line in lines if line.startswith("envgym: ")]
        assert program.wait(180) == 2
    (sentence,) = sentences
    told = "rollout-worker-0 must run until the run ends, got the signal SIGKILL and 1 restart within 600 s ("
    assert sentence.startswith(f"envgym: {told}")
    assert sentence.endswith("then go on with: envgym train ranks --resume.\n")
    check_nothing_left(tmp_path, temporary)


@pytest.mark.timeout(300)
def test_workers_play_ahead_with_the_weights_of_the_servers(tmp_path: Path) -> None:
    rollout = {"staleness": 1, "deterministic": False}
    sections = {"engine": ONE_AT_A_TIME, "rollout": rollout, "correction": {"name": "tis"}, "run": {"steps": 4}}
    train(tiny_settings(tmp_path, launch={"servers": 1, "rollout_workers": 2}, **sections))
    steps = step_metrics(tmp_path)
    assert max(step["staleness/max"] for step in steps) == 1
    assert all(step["canary/gap"] < 1e-4 for step in steps)
    assert all(step["rollout/invalid"] == 0 for step in steps)


@pytest.mark.timeout(300)
def test_an_error_of_a_worker_ends_the_run_with_its_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.trainer.launch.workers.start.__version__", "9.9")
    with pytest.raises(RunError, match=r"envgym must be 9\.9, as in the run's process, got .* \(rollout-worker-0\)"):
        train(tiny_settings(tmp_path, launch={"servers": 1, "rollout_workers": 1}))


SERVERS = {"servers": 1, "rollout_workers": 1}


@pytest.mark.parametrize(
    "launch, sections, told",
    [
        ({"rollout_workers": 1}, {}, "must be 0 without policy servers: the policy lives in the run's process, got 1"),
        (SERVERS, {"agent": {"program": {"run": "p.py:play"}}}, "must be 0 with agent.program, which the run's .*"),
        ({"launcher": "static", "rollout_workers": 1}, {}, "must be 0 with the launcher static, got 1 .* local or ray"),
    ],
)
def test_what_workers_cannot_do_is_refused(
    tmp_path: Path, launch: dict[str, Any], sections: dict[str, Any], told: str
) -> None:
    with pytest.raises(SettingsError, match=rf"launch\.rollout_workers {told}"):
        train(tiny_settings(tmp_path / "run", launch=launch, **sections))
    assert not (tmp_path / "run").exists()
