"""vLLM with two workers on the CPU that have half of the weights each, beside transformers' numbers."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from envgym.agents.models.loading import resolve_model
from envgym.agents.models.tiny import TinySettings
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.serving.client import ServedPolicy
from envgym.agents.policies.weights.transport import FileTransport, GroupTransport, SharedTransport, WeightTransport
from envgym.agents.policies.weights.weight_store import compute_digests
from envgym.sandbox._tree import descendants
from tests.agents.policies.vllm.test_served import LIMITS, change, live_digests
from tests.agents.policies.vllm.two_workers import largest_gap, loaded
from tests.envgym.sandbox.processes import command_of
from tests.support.retrievers import serve, served_url
from tests.support.sources import ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

SHAPE = {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "intermediate_size": 64}


class Owner(NamedTuple):
    """A program that has an engine with two workers."""

    process: "subprocess.Popen[bytes]"
    found: dict[str, float]
    """What it has compared."""


def tiny(num_kv_heads: int) -> str:
    """Return the directory of a model with 4 heads, whose head and embedding are one matrix."""
    return resolve_model("tiny", tiny=TinySettings(**SHAPE, num_kv_heads=num_kv_heads))


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    command = [sys.executable, "-m", "tests.agents.policies.vllm.two_workers", tiny(2)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Owner(process, json.loads(process.stdout.readline()))
        process.kill()


def test_two_workers_give_the_numbers_of_one_and_both_take_new_weights(owner: Owner) -> None:
    assert owner.found["first"] < 1e-4
    assert owner.found["changed"] > 0.01
    assert owner.found["updated"] < 1e-4
    assert owner.found["sampled"] < 1e-4
    assert owner.found["version"] == 1


def test_engine_and_workers_end_with_an_owner_that_was_killed(owner: Owner) -> None:
    started = [pid for pid in descendants(owner.process.pid) if b"VLLM::" in command_of(pid)]
    names = sorted(command_of(pid).split(b"\0")[0].split(b" ")[0] for pid in started)
    assert len([name for name in names if b"Worker" in name]) == 2, names
    owner.process.kill()
    while any(map(command_of, started)):  # until the test's time is up
        time.sleep(0.2)


def test_server_of_two_workers_takes_weights_by_every_transport_and_proves_each(tmp_path: Path) -> None:
    # Both workers have the only head of keys and values, and half of everything else.
    source, cpu = tiny(1), torch.device("cpu")
    model = loaded(source)
    options = "--engine vllm --threads 1 --cache-gib 0.05 --max-context 300 --tensor-parallel 2 --vllm block_size=64"
    transports: list[WeightTransport] = [
        FileTransport(tmp_path / "weights"),
        GroupTransport("gloo", device=cpu, timeout_s=60),
        SharedTransport(cpu),
    ]
    with serve("policy-server", source, *options.split(), cache=tmp_path / "cache") as printed:
        url = served_url(printed.readline())
        for version, transport in enumerate(transports, start=1):
            policy = ServedPolicy([url], transport=transport, limits=LIMITS)
            try:
                change(model, version)
                assert largest_gap(policy, model) > 0.01
                policy.update_weights(merged_weights(model), version)  # compares the digests of all weights
                assert live_digests(policy) == compute_digests(merged_weights(model))
                assert largest_gap(policy, model) < 1e-4
            finally:
                policy.close()


def test_other_workers_are_told_that_the_first_received_no_description(monkeypatch: pytest.MonkeyPatch) -> None:
    from envgym.agents.policies.vllm import serve_worker  # imports vLLM

    sent: list[object] = []

    class FirstWorker:
        def broadcast_object(self, described: object = None) -> object:
            sent.append(described)
            return described

    class LostRun:
        def receive_description(self) -> None:
            raise RuntimeError("the run has gone")

    monkeypatch.setattr(serve_worker, "get_tp_group", FirstWorker)
    engines: list[Any] = [object.__new__(serve_worker.RunWeights) for _ in range(2)]
    first, other = engines
    first._group, other._group = LostRun(), None
    with pytest.raises(RuntimeError, match="the run has gone"):
        first._receive_description()
    assert sent == [None]
    with pytest.raises(RuntimeError, match="the first worker of this engine received no description"):
        other._receive_description()
