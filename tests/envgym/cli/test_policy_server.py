"""`envgym policy-server` serves a model until it is interrupted, and a run trains from it."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from envgym.agents.models.loading import resolve_model
from envgym.agents.models.tiny import TinySettings
from envgym.runs.directory import RunDirectory
from tests.envgym.cli.conftest import SHAPE
from tests.support.retrievers import serve, served_url

Command = Callable[..., tuple[int, str, str]]


def test_a_port_in_use_is_told(command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = command("policy-server", "tiny", "--port", port)
    assert code == 2
    said = err.splitlines()[-1]
    assert said.startswith(f"envgym: address must be free to listen on, got 127.0.0.1 port {port} (")
    assert said.endswith("); choose another --port (0 takes a free one) or --host.")


def test_quantization_is_refused_before_a_model_is_loaded(command: Command) -> None:
    code, _, err = command("policy-server", "no-such-model", "--engine", "vllm", "--vllm", "quantization=fp8")
    assert code == 2
    assert "must have no quantization for a policy server, which takes weights as they are trained, got fp8" in err


@pytest.mark.parametrize(
    "backend, sentence",
    [
        (
            "{name: policy_servers, servers: ['http://127.0.0.1:9'], wait_s: 0.5}",
            "server must be reachable, got ConnectionFailed",
        ),
        ("{name: policy_servers, servers: []}", "servers must"),
        (
            "{name: policy_servers, servers: ['http://127.0.0.1:9'], token_env: NO_SUCH_TOKEN}",
            "must hold a token, got NO_SUCH_TOKEN",
        ),
    ],
)
def test_unusable_servers_end_a_run_at_once(command: Command, folder: Path, backend: str, sentence: str) -> None:
    code, _, err = command("train", "run.yaml", "--set", f"engine.backend={backend}")
    assert (code, sentence in err, (folder / "runs").exists()) == (2, True, False), err


@pytest.mark.processes
def test_a_run_trains_from_a_server(command: Command, folder: Path) -> None:
    model = resolve_model("tiny", tiny=TinySettings(**SHAPE))
    with serve("policy-server", model, cache=folder / "cache") as printed:
        told = printed.readline()
        assert told.startswith(f"{model} at ")
        backend = json.dumps({"name": "policy_servers", "servers": [served_url(told)], "weights": "weights"})
        code, _, err = command("train", "run.yaml", "--set", f"engine.backend={backend}")
        assert code == 0, err
    steps = [row for row in RunDirectory.open(folder / "runs" / "vowels").metrics() if row["step"]]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(float(row["canary/gap"]) < 1e-4 for row in steps)
    assert [row["staleness/max"] for row in steps] == [0.0, 0.0]
    assert sorted(path.name for path in (folder / "weights").iterdir()) == ["version-00000001", "version-00000002"]
