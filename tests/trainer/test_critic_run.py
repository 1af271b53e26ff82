"""Runs whose credit reads a critic: they train it, keep it, and resume with it."""

import math
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from envgym.errors import RunError, SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer.method import build_method
from envgym.trainer.phases import dry_runs
from envgym.trainer.train import train
from tests.support.tiny_runs import comparable, tiny_settings

settings = partial(
    tiny_settings,
    envs=[{"id": "puzzles/guess_number-v0", "settings": {"size": 4, "max_turns": 2}}],
    agent={"max_context_tokens": 512},
    rollout={"groups": 2, "group_size": 2},
    # an untrained model is paid nothing, and a critic that says 0 is right: pay it for every episode's length
    shaping={"name": "overlong", "max_tokens": 4, "buffer": 4},
    credit={"name": "gae_turn", "decay": 0.9},
    optim={"lr": 0.001, "minibatches": 2},
)
"""A run of seconds on a game of up to two turns."""


def test_critic_learns_is_kept_and_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    train(settings(tmp_path / "run"))
    run = RunDirectory.open(tmp_path / "run")
    first, second = (row for row in run.metrics() if row["step"] > 0)
    assert first["critic/value"] == 0.0
    assert first["critic/target"] < -0.1
    assert second["critic/value"] < -0.01
    assert all(math.isfinite(row["loss/value"]) and row["loss/value"] > 0 for row in (first, second))
    before = comparable(run)
    last = run.checkpoints / "step-000002"
    kept = torch.load(last / "critic.pt", weights_only=True)
    assert kept["head"]["weight_D"].abs().max() > 0.01
    shutil.rmtree(last)
    train(settings(tmp_path / "run"), resume=True)
    assert comparable(run) == before
    again = torch.load(last / "critic.pt", weights_only=True)
    assert torch.equal(again["head"]["weight_D"], kept["head"]["weight_D"])
    assert torch.equal(again["optimizer"]["state"][0]["exp_avg"], kept["optimizer"]["state"][0]["exp_avg"])

    (run.checkpoints / "step-000001" / "critic.pt").unlink()
    shutil.rmtree(last)
    with pytest.raises(RunError, match=r"checkpoint must hold critic\.pt"):
        train(settings(tmp_path / "run"), resume=True)


def test_dry_run_counts_the_pass_of_the_critic(tmp_path: Path) -> None:
    found = dry_runs([settings(tmp_path, optim={})])[0]
    assert found.cost is not None
    assert found.cost.passes == pytest.approx(1 + 1 / 3)
    assert all(row.train.supervised for row in found.rows)


def test_critic_without_a_credit_that_reads_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="critic must be used with a credit that uses a critic, got credit grpo"):
        build_method(settings(tmp_path, credit={"name": "grpo"}, critic={"lr": 0.1}))
