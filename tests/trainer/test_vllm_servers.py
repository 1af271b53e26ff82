"""Runs that start vLLM as their policy server: a sound one, and one whose servers keep their first weights."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from envgym.agents.policies.weights.transport import FileTransport, WeightUpdate
from envgym.core.segments import Origin
from envgym.errors import RunError, SettingsError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.runs.files import LOGS
from envgym.runtime.processes.log import read_trace
from envgym.trainer.launch.launch import process_specs
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.train import train
from tests.support.tiny_runs import StartedProcesses, step_metrics, tiny_settings

LAUNCH = {"servers": 1, "server_engine": "vllm"}


def run(folder: Path, callbacks: Iterable[Callback] = (), *, workers: int = 1) -> None:
    settings: dict[str, Any] = {
        "launch": LAUNCH,
        "engine": {"device": "cpu", "cache_gib": 0.1, "max_context": 512, "tensor_parallel": workers},
        "optim": {"lr": 0.03},
        "objective": {"entropy_coef": 0.1},  # so that every step moves the weights
    }
    train(tiny_settings(folder, **settings), callbacks=list(callbacks))


def members(groups: Iterable[int]) -> list[int]:
    """Return the processes of process groups: each that is started leads one, with those that it starts."""
    stats = [path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    return [int(fields[2]) for fields in stats if int(fields[2]) in set(groups) and fields[0] != "Z"]


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [1, 2] if "ENVGYM_VLLM_ALL" in os.environ else [2])
def test_a_run_trains_through_a_vllm_server_that_it_starts(tmp_path: Path, workers: int) -> None:
    """A run starts a server of one worker in the next test; `make nightly` trains through that, too."""
    started = StartedProcesses()
    run(tmp_path / "run", [started], workers=workers)
    steps = step_metrics(tmp_path / "run")
    assert [step["staleness/max"] for step in steps] == [0.0, 0.0]
    assert all(step["canary/gap"] < 1e-3 < step["canary/moved"] for step in steps)
    assert all((step["rollout/episodes"], step["rollout/invalid"]) == (8.0, 0.0) for step in steps)
    directory = RunDirectory.open(tmp_path / "run")
    for step in (1, 2):
        trees = trees_of(directory.episodes([step], label="train"))
        parts = [part for tree in trees for node in tree.nodes for part in node.edge.segments]
        sampled = {part.policy_version for part in parts if part.origin is Origin.POLICY}
        assert sampled == {step - 1}, "the version that vLLM stated of each token"
    assert len(started.pids) == 1
    assert members(started.pids) == []
    with pytest.raises(ProcessLookupError):
        os.kill(started.pids[0], 0)
    assert (tmp_path / "run" / LOGS / "policy-server-0.jsonl").exists()
    roles = {entry["role"] for entry in read_trace(tmp_path / "run", "step-000001/000")}
    assert roles == {"controller", "policy-server-0"}


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
def test_canary_stops_a_run_whose_vllm_server_gets_old_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, first = FileTransport.publish, list[list[tuple[str, Tensor]]]()

    def stale(transport: FileTransport, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> WeightUpdate:
        first.append([(name, tensor.clone()) for name, tensor in named_tensors])
        return sound(transport, first[0], version)

    monkeypatch.setattr(FileTransport, "publish", stale)
    with pytest.raises(RunError, match="the sampler's log-probs must"):
        run(tmp_path / "run")
    assert len(first) >= 2


def test_vllm_servers_have_the_cache_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = {"device": "cpu", "threads": 1, "cache_gib": 0.5, "max_context": 700, "tensor_parallel": 2}
    engine["vllm"] = {"block_size": 16, "speculative_config": {"method": "ngram"}}
    settings = tiny_settings(tmp_path, launch=LAUNCH, engine=engine)
    monkeypatch.setattr("envgym.agents.policies.vllm.engine._DISTRIBUTIONS", ("no-such-vllm",))
    with pytest.raises(SettingsError, match="backend vllm must have vLLM installed, got no such package"):
        process_specs(settings)
    monkeypatch.setattr("envgym.agents.policies.vllm.engine._DISTRIBUTIONS", ("h11",))  # which names no torch
    (spec,) = process_specs(settings)
    words = " ".join(spec.command)
    assert "--engine vllm --dtype float32 --device cpu --threads 1 --max-batch 64 --cache-gib 0.5" in words
    assert "--max-context 700 --tensor-parallel 2 --vllm block_size=16" in words
    assert words.endswith('--vllm speculative_config={"method": "ngram"} --port 0')
