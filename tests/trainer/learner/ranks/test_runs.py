"""Runs whose learner is several processes: their numbers are those of one process, and a death ends them."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from envgym.agents.models.loading import load
from envgym.agents.models.tiny import TinySettings
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.runs.files import LOGS
from envgym.trainer.launch.launch import meeting_of_torchrun, process_specs
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.ranks.learner import RankLearner
from envgym.trainer.learner.ranks.meeting import Meeting
from envgym.trainer.method import build_method
from envgym.trainer.recipes import RECIPE
from envgym.trainer.settings import recipe_settings, train_settings
from envgym.trainer.train import train
from tests.agents.policies.serving.running import serving
from tests.support.sources import ROOT
from tests.support.tiny_runs import TINY, step_metrics, tiny_settings

RESETS = {"reset_reference": True, "reset_optimizer": True, "settings": {"objective.kl_coef": 0.2}}
SFT = {"episodes": 8, "batch_size": 4, "lr": 0.001}
VARIANTS: dict[str, dict[str, Any]] = {
    "reference after a warm start, loss of a file": {
        "sft": SFT,
        "objective": {"kl_coef": 0.1},
        "loss": {"name": "examples/plugins/weighted_reinforce.py:WeightedReinforce"},
        "optim": {"minibatches": 2},
    },
    "adapters with a reference, and a critic": {
        "model": {"lora": {"rank": 2, "alpha": 4.0}},
        "credit": {"name": "gae_turn"},
        "objective": {"kl_coef": 0.1},
    },
    "terms that couple rows": {"recipe": "clip_cov"},
    "reference, optimizer and weights that controllers change": {
        "model": {"lora": {"rank": 2, "alpha": 4.0}},
        "objective": {"kl_coef": 0.1},
        "controllers": [
            {"name": "stages", "stages": [{"after": {"step": 1}, **RESETS}]},
            {"name": "weight_average", "decay": 0.5, "adopt_every": 1},
        ],
        "run": {"steps": 3},
    },
}


def run_in_two(directory: Path, **sections: Any) -> list[dict[str, float]]:
    train(tiny_settings(directory, launch={"learners": 2}, **sections))
    return step_metrics(directory)


@pytest.mark.processes
@pytest.mark.parametrize("variant", VARIANTS)
def test_run_of_two_ranks_has_the_numbers_of_one_process(variant: str, tmp_path: Path) -> None:
    sections = VARIANTS[variant]
    train(tiny_settings(tmp_path / "alone", **sections))
    found, expected = run_in_two(tmp_path / "two", **sections), step_metrics(tmp_path / "alone")
    assert len(found) == len(expected) == sections.get("run", {}).get("steps", 2)
    for of_two, of_one in zip(found, expected, strict=True):
        assert of_two == pytest.approx(of_one, rel=1e-4, abs=1e-5)


@pytest.mark.processes
@pytest.mark.parametrize(
    "model", [{}, {"lora": {"rank": 2, "target_modules": ["q_proj", "v_proj"]}}], ids=["all", "lora"]
)
def test_no_rank_has_the_whole_model_where_servers_sample_and_the_numbers_are_those_of_one_process(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[nn.Module] = []
    sound = RankLearner.release_whole

    def noting(learner: RankLearner) -> None:
        assert learner._whole is not None
        released.append(learner._whole)
        sound(learner)

    monkeypatch.setattr(RankLearner, "release_whole", noting)
    found = {}
    for num_ranks in (1, 2):
        with serving(load("tiny", tiny=TinySettings(**TINY)).model) as server:
            backend = {"name": "policy_servers", "servers": [server.http.url]}
            sections: dict[str, Any] = {"model": model, "engine": {"device": "cpu", "backend": backend}}
            folder = tmp_path / str(num_ranks)
            train(tiny_settings(folder, launch={"learners": num_ranks}, **sections))
            train(tiny_settings(folder, launch={"learners": 3 - num_ranks}, run={"steps": 3}, **sections), resume=True)
            found[num_ranks] = step_metrics(folder)
            assert server._policy.version == 3
    assert len(released) == 2
    assert all(parameter.is_meta for whole in released for parameter in whole.parameters())
    for of_two, of_one in zip(found[2], found[1], strict=True):
        assert of_two.pop("cost/tokens_prefilled") > 0  # depends on which requests meet
        assert of_one.pop("cost/tokens_prefilled") > 0
        assert of_two == pytest.approx(of_one, rel=1e-4, abs=1e-5)


@pytest.mark.processes
def test_run_goes_on_at_another_number_of_ranks(tmp_path: Path) -> None:
    train(tiny_settings(tmp_path / "alone", run={"steps": 3}))
    for steps, learners in ((1, 2), (2, 1), (3, 3)):
        settings = tiny_settings(tmp_path / "changing", run={"steps": steps}, launch={"learners": learners})
        train(settings, resume=steps > 1)
    found, expected = step_metrics(tmp_path / "changing"), step_metrics(tmp_path / "alone")
    for of_ranks, of_one in zip(found, expected, strict=True):
        schedule = {"optim/lr": of_ranks["optim/lr"]}  # which knew of fewer steps
        assert of_ranks == pytest.approx({**of_one, **schedule}, rel=1e-4, abs=1e-5)


def run_file(folder: Path, **sections: Any) -> Path:
    data: dict[str, Any] = {
        "run": {"name": "ranks", "directory": "ranks", "steps": 40, "checkpoint_every": 1},
        "model": {"name": "tiny"},
        "engine": {"device": "cpu", "threads": 1},
        "agent": {"name": "plain", "max_turn_tokens": 4, "max_context_tokens": 256, "on_length": "close"},
        "rollout": {"groups": 1, "group_size": 2},
        "filter": {"name": "keep_all"},
        "evaluation": {"tasks": 1},
        "envs": [{"id": "puzzles/guess_number-v0"}],
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({**data, **sections}))
    return file


@contextmanager
def started(folder: Path, *words: str) -> Iterator[tuple["subprocess.Popen[str]", Iterator[str]]]:
    """Start `python -m envgym WORDS` in a folder; yield it with what it writes to stderr, line by line."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "envgym", *words]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        try:
            yield program, iter(program.stderr.readline, "")
        finally:
            program.kill()


def pids_of(folder: Path) -> dict[str, int]:
    log = (folder / "ranks" / LOGS / "controller.jsonl").read_text().splitlines()
    return {entry["process"]: entry["pid"] for entry in map(json.loads, log) if entry.get("event") == "start"}


SIGKILLED = "must run until the run ends, got the signal SIGKILL"


SERVERS = {"servers": 1, "env_servers": 1, "restarts": 0}
ALL_KINDS = {"learners": 2, **SERVERS}
TWO_RANKS = {"learners": 2, "rank_timeout_s": 20.0}  # less than this a busy machine may take for a step


@pytest.mark.processes
@pytest.mark.parametrize(
    "role, number, launch, told",
    [
        ("learner-1", signal.SIGKILL, ALL_KINDS, f"envgym: learner-1 {SIGKILLED}"),
        ("learner-1", signal.SIGSTOP, TWO_RANKS, "envgym: every learner rank must answer until the run ends, got "),
        ("policy-server-0", signal.SIGKILL, SERVERS, f"envgym: policy-server-0 {SIGKILLED}"),
        ("env-server-0", signal.SIGKILL, SERVERS, f"envgym: env-server-0 {SIGKILLED}"),
        ("controller", signal.SIGKILL, ALL_KINDS, ""),
    ],
)
def test_a_process_that_is_gone_ends_the_run_which_goes_on_by_itself(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    number: signal.Signals,
    launch: dict[str, float],
    told: str,
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    file = run_file(tmp_path, launch=launch)
    with started(tmp_path, "train", str(file)) as (run, lines):
        assert any(line.startswith("step    2/") for line in lines)
        pids = pids_of(tmp_path)
        others = {"learner-1": "learners", "policy-server-0": "servers", "env-server-0": "env_servers"}
        assert set(pids) == {name for name, setting in others.items() if setting in launch}
        os.kill({"controller": run.pid, **pids}[role], number)
        sentences = [line for line in lines if line.startswith("envgym: ")]
        assert run.wait(180) == (2 if told else -signal.SIGKILL)
        for pid in pids.values():
            ended(pid)
    assert len(sentences) == bool(told)
    assert all(sentence.startswith(told) for sentence in sentences)
    if role == "learner-1" and number == signal.SIGKILL:
        assert sentences[0].endswith("then go on with: envgym train ranks --resume.\n")
    assert not [path.name for path in (tmp_path / "temporary").iterdir() if "ranks" in path.name]
    saved = int(RunDirectory.open(tmp_path / "ranks").metrics()[-1]["step"])
    settings = train_settings(yaml.safe_load(file.read_text()) | {"launch": {}})
    update = {"steps": saved + 1, "directory": str(tmp_path / "ranks")}
    train(settings.model_copy(update={"run": settings.run.model_copy(update=update)}), resume=True)
    assert RunDirectory.open(tmp_path / "ranks").metrics()[-1]["step"] == saved + 1


def ended(pid: int) -> None:
    """Wait until a process that another one has started is gone, at most a minute."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            assert select.select([descriptor], [], [], 60)[0], f"{pid} still runs"
        finally:
            os.close(descriptor)


BROKEN = '''
import torch
from envgym.config.settings import Settings
from envgym.trainer.methods.losses import PpoClip

class Broken(PpoClip):
    """Fails on the first rank alone."""

    def __call__(self, batch):
        if torch.distributed.get_rank() == 0:
            raise ValueError("this loss is broken")
        return super().__call__(batch)
'''


@pytest.mark.processes
def test_an_error_of_rank_0_alone_ends_the_run_at_once_with_that_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    file = run_file(tmp_path, loss={"name": "broken.py:Broken"})
    with started(tmp_path, "train", str(file), "--learners", "2") as (run, lines):
        written = list(lines)
        assert run.wait(180) == 1
        for pid in pids_of(tmp_path).values():
            ended(pid)
    assert any("this loss is broken" in line for line in written[-3:]), written


HUNGRY = '''
import os, torch
from envgym.config.settings import Settings
from envgym.trainer.methods.losses import PpoClip

class Hungry(PpoClip):
    """Finds no memory on the second rank."""

    def __call__(self, batch):
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            raise torch.OutOfMemoryError("no memory")
        return super().__call__(batch)
'''


@pytest.mark.processes
def test_a_rank_without_memory_says_which_setting_to_lower(tmp_path: Path) -> None:
    (tmp_path / "hungry.py").write_text(HUNGRY)
    sections = {"optim": {"micro_batch_tokens": 1024}, "rollout": {"groups": 1, "group_size": 8}}
    file = run_file(tmp_path, loss={"name": "hungry.py:Hungry"}, **sections)
    with started(tmp_path, "train", str(file), "--learners", "2") as (run, lines):
        sentences = [line for line in lines if line.startswith("envgym: ")]
        assert run.wait(180) == 2
    (sentence,) = sentences
    assert sentence.startswith("envgym: learner-1 must run until the run ends, got exit code 2 (")
    assert "optim.micro_batch_tokens must fit the memory that is free, got 1024" in sentence
    assert "lower optim.micro_batch_tokens to " in sentence


@pytest.mark.processes
def test_ranks_of_torchrun_are_those_of_the_run(tmp_path: Path) -> None:
    file = run_file(tmp_path)
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "envgym", "train", str(file)]
    words += ["--set", "run.steps=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    train(
        train_settings(yaml.safe_load(file.read_text())).model_copy(
            update={"run": tiny_settings(tmp_path / "alone").run}
        )
    )
    found, expected = step_metrics(tmp_path / "ranks"), step_metrics(tmp_path / "alone")
    for of_ranks, of_one in zip(found, expected, strict=True):
        assert of_ranks == pytest.approx(of_one, rel=1e-4, abs=1e-5)
    assert sorted(path.name for path in (tmp_path / "ranks/checkpoints/step-000002/optimizer").glob("*.distcp")) == [
        "__0_0.distcp",
        "__1_0.distcp",
    ]


# ---- what is started, and how the ranks know of each other ----------------------------------------------------------


def test_ranks_but_the_first_are_started_and_share_the_cores(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, launch={"learners": 3, "rank_timeout_s": 30}, engine={"threads": 2})
    specs = process_specs(settings, Meeting.at_file(0, 3, "/somewhere/meeting"))
    options = "--of 3 --meeting /somewhere/meeting --device cpu --threads 2 --timeout 30.0"
    assert [spec.role for spec in specs] == ["learner-1", "learner-2"]
    assert [" ".join(spec.command) for spec in specs] == [f"learner-rank --rank {n} {options}" for n in (1, 2)]
    assert all(spec.serves and spec.ends_itself for spec in specs)


def torchrun(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


OF_FOUR = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def test_ranks_of_torchrun_are_taken_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun(monkeypatch, **OF_FOUR)  # of somebody else's launcher
    assert meeting_of_torchrun(tiny_settings(tmp_path).launch) is None
    static = tiny_settings(tmp_path, launch={"learners": 4, "launcher": "static"})
    assert meeting_of_torchrun(static.launch) == Meeting(2, 4, "env://", 0)
    assert not Meeting(2, 4, "env://", 0).is_local
    torchrun(monkeypatch, **OF_FOUR, TORCHELASTIC_RUN_ID="x", LOCAL_WORLD_SIZE="4")
    assert Meeting(2, 4, "env://", 0).is_local
    assert meeting_of_torchrun(tiny_settings(tmp_path).launch) == Meeting(2, 4, "env://", 0)
    with pytest.raises(SettingsError, match=r"launch.learners must be the 4 that torchrun has started, got 2"):
        meeting_of_torchrun(tiny_settings(tmp_path, launch={"learners": 2}).launch)
    torchrun(monkeypatch)
    with pytest.raises(SettingsError, match=r"ranks must know each other, got no \['RANK'"):
        meeting_of_torchrun(static.launch)


@pytest.mark.parametrize("recipe", RECIPE.table)
def test_every_recipes_objective_travels_to_other_ranks(recipe: str, tmp_path: Path) -> None:
    data = {"recipe": recipe, "run": {"name": "run", "directory": str(tmp_path)}, "model": {"name": "tiny"}}
    settings = train_settings({**data, "envs": [{"id": "puzzles/guess_number-v0"}]})
    objective = build_method(settings).objective
    torch.save(objective, tmp_path / "objective.pt")
    found = torch.load(tmp_path / "objective.pt", weights_only=False)
    assert isinstance(found, Objective)
    assert type(found.loss) is type(objective.loss)
    assert found.settings == objective.settings
    assert recipe_settings(recipe).loss.name == settings.loss.name
