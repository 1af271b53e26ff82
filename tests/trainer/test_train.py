"""The whole loop on a real env and a real (tiny) model: it learns, it records, and it resumes to the same numbers."""

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.evaluation.run import run_evaluation
from envgym.agents.settings import EvalSettings
from envgym.config.settings import build_settings
from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.train import train
from tests.support.programs import run_program
from tests.support.tiny_runs import TINY, comparable


def settings(directory: Path, **sections: Mapping[str, Any]) -> TrainSettings:
    """Return a run of seconds: one small env, a model of 50,000 parameters, three steps."""
    data: dict[str, Any] = {
        "run": {"name": "test", "directory": str(directory), "steps": 3, "checkpoint_every": 1, "trackers": []},
        "model": {"name": "tiny", "tiny": TINY},
        "engine": {"device": "cpu"},
        "envs": [{"id": "math/arithmetic-v0", "settings": {"level": 1}}],
        "agent": {"name": "tool_calling", "max_turn_tokens": 48, "max_context_tokens": 512},
        "sft": {"episodes": 16, "batch_size": 8, "lr": 0.003},
        "rollout": {"groups": 2, "group_size": 3},
        "filter": {"name": "keep_all"},
        "optim": {"lr": 0.001, "minibatches": 2},
        "objective": {"kl_coef": 0.01},
        "evaluation": {"tasks": 4},
    }
    for section, values in sections.items():
        data[section] = {**data.get(section, {}), **values}
    return train_settings(data)


class Stop(Callback):
    def __init__(self, step: int) -> None:
        self._step, self._seen = step, 0

    def on_step(self, step: int, metrics: Metrics) -> None:
        self._seen = step

    def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        if phase == "collect" and self._seen == self._step - 1 and done == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_in_step(directory: Path, step: int) -> int:
    """Run in a process of its own that dies in `step`; return its exit code."""
    program = (
        "import sys, json, importlib.util\n"
        "from pathlib import Path\n"
        "path, directory, step = sys.argv[1:]\n"
        "spec = importlib.util.spec_from_file_location('scene', path)\n"
        "scene = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(scene)\n"
        "scene.train(scene.settings(Path(directory)), callbacks=[scene.Stop(int(step))])\n"
    )
    return run_program("-c", program, __file__, str(directory), str(step)).returncode


@pytest.mark.slow
def test_killed_run_resumes_to_the_numbers_of_an_uninterrupted_one(tmp_path: Path) -> None:
    train(settings(tmp_path / "whole"))
    assert killed_in_step(tmp_path / "killed", 3) == -signal.SIGKILL
    killed = RunDirectory.open(tmp_path / "killed")
    assert [row["step"] for row in killed.metrics()] == [0, 1, 2]
    sampled = (killed.path / "journal" / "turns-00000002.jsonl").read_text().splitlines()
    assert len(sampled) >= 2
    # The directory is part of the settings, so the resumed run is told the same one.
    train(settings(tmp_path / "killed"), resume=True)
    whole = RunDirectory.open(tmp_path / "whole")
    assert comparable(killed, "journal/") == comparable(whole, "journal/")
    reused = [row.get("journal/turns", 0.0) for row in killed.metrics()]
    assert reused == [0, 0, 0, len(sampled)], "what was sampled before the kill is not sampled again"
    assert not list((killed.path / "journal").glob("turns-0000000[0-2]*"))
    assert [row["step"] for row in whole.metrics()] == [0, 1, 2, 3]
    drop = ("seconds", "costs")
    assert [{k: v for k, v in data.items() if k not in drop} for data in killed.evals()] == [
        {k: v for k, v in data.items() if k not in drop} for data in whole.evals()
    ]


def test_evaluation_lost_by_a_kill_is_made_up_for(tmp_path: Path) -> None:
    between = {"every": 1, "tasks": 4, "tasks_during": 2}
    train(settings(tmp_path / "run", evaluation=between))
    lost = tmp_path / "run" / "evals" / "step-000002-during.json"
    before = json.loads(lost.read_text())
    lost.unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000003")
    train(settings(tmp_path / "run", evaluation=between), resume=True)
    assert json.loads(lost.read_text())["rewards"] == before["rewards"]
    assert [(data["label"], data["step"]) for data in RunDirectory.open(tmp_path / "run").evals()] == [
        ("held-out", 0),
        ("during", 1),
        ("during", 2),
        ("held-out", 3),
    ]


def test_run_directory_holds_what_a_reader_needs(tmp_path: Path) -> None:
    result = train(settings(tmp_path / "run"))
    run = RunDirectory.open(tmp_path / "run")
    assert result.report == tmp_path / "run" / "report.html"
    assert "<html" in result.report.read_text()
    assert [record.step for record in result.evaluations] == [0, 3]
    assert all(len(record.rewards) == 4 for record in result.evaluations)
    assert run.episode_steps() == [1, 2, 3]
    rows = run.episodes([2], label="train")
    assert len(rows) == 6
    assert all(row["advantages"] is not None for row in rows if row["reward"] is not None)
    step = run.metrics()[2]
    assert (step["rollout/episodes"], step["rollout/invalid"], step["optim/updates"]) == (6.0, 0.0, 2.0)
    assert 0.0 <= step["logprob_gap/mean_abs"] < 1e-3  # sampler and learner share weights: only float error is left
    assert json.loads((tmp_path / "run" / "checkpoints" / "step-000003" / "state.json").read_text())["step"] == 3


def test_second_run_into_one_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="run directory must be new or empty"):
        train(settings(tmp_path / "run"))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_resuming_with_other_settings_is_refused(tmp_path: Path) -> None:
    train(settings(tmp_path / "run", run={"steps": 1}))
    before = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    with pytest.raises(RunError, match=r"resumed settings must be those of the run, got changes in \['optim\.lr'\]"):
        train(settings(tmp_path / "run", run={"steps": 1}, optim={"lr": 0.5}), resume=True)
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == before


def test_lora_trains_adapters_and_resumes(tmp_path: Path) -> None:
    lora = {"lora": {"rank": 2, "alpha": 4}}
    train(settings(tmp_path / "run", model=lora, run={"steps": 2}))
    saved = tmp_path / "run" / "checkpoints" / "step-000002" / "model" / "adapter_model.safetensors"
    assert saved.stat().st_size < 100_000


def test_a_run_on_old_samples_repeats_and_says_how_old_they_are(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"rollout": {"staleness": 1}, "correction": {"name": "tis"}, "evaluation": {"tasks": 1}}
    runs = [RunDirectory.open(train(settings(tmp_path / name, **asked)).directory) for name in ("one", "two")]
    first, second = (comparable(run, "journal/") for run in runs)
    assert first == second
    assert [row["staleness/max"] for row in first if row["step"] > 0] == [0.0, 1.0, 1.0]


def test_a_run_that_overlaps_stays_within_its_bound_and_its_audits_hold(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "rollout": {"staleness": 1, "deterministic": False},
        "run": {"steps": 4},
        "evaluation": {"tasks": 1},
    }
    rows = RunDirectory.open(train(settings(tmp_path / "free", **asked)).directory).metrics()
    learned = [row for row in rows if row["step"] > 0]
    assert [row["step"] for row in learned] == [1, 2, 3, 4]
    assert all(0 <= row["staleness/max"] <= 1 for row in learned)
    assert all(row["rollout/episodes"] == 6.0 and row["rollout/invalid"] == 0.0 for row in learned)
    assert all(row["canary/gap"] < 1e-3 for row in learned)


# ---- one description of a run ------------------------------------------------------------------------------------

BACKEND = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "continuous_batching.py"


def test_evaluations_inside_a_run_are_those_of_eval_with_search_and_backend_alike(tmp_path: Path) -> None:
    engine = {"backend": {"name": f"{BACKEND}:ContinuousBackend", "max_batch": 4}}
    search = {"name": "best_of", "n": 2}
    evaluation = {"tasks": 3, "temperature": 1.0, "search": search}
    asked = settings(tmp_path / "run", engine=engine, evaluation=evaluation, run={"steps": 1})
    _, after = train(asked).evaluations
    assert (after.search, after.selected_by, after.step) == ("best_of", "majority", 1)
    alone = run_evaluation(
        build_settings(
            EvalSettings,
            {
                "run": {"directory": str(tmp_path / "eval")},
                "model": {"name": str(tmp_path / "run/checkpoints/step-000001/model"), "train_steps": 1},
                "engine": asked.engine.model_dump(),
                "agent": asked.agent.model_dump(),
                "envs": [env.model_dump() for env in asked.envs],
                "evaluation": asked.evaluation.model_dump(),
            },
            where="test",
        )
    )
    (record,) = alone.evaluations
    assert record.rewards == after.rewards
    assert {**record.costs, "seconds": 0.0, "tokens_prefilled": 0.0} == {
        **after.costs,
        "seconds": 0.0,
        "tokens_prefilled": 0.0,  # what is cached depends on what was sampled before
    }
    assert (record.label, record.step, record.selected_by) == (after.label, 1, "majority")


def test_micro_batches_too_large_are_told_before_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = tmp_path / "meminfo"
    free.write_text("MemAvailable: 1024 kB\n")
    monkeypatch.setattr("envgym.agents.models.loading._MEMINFO", free)
    with pytest.raises(UserWarning, match="micro_batch_tokens must fit the memory that is free, got 8192 where"):
        train(settings(tmp_path / "run"))  # here a warning is an error
    assert not (tmp_path / "run").exists()
