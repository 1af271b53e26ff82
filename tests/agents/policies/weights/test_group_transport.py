"""New weights over a process group with each server, by gloo: the code of NCCL but for its device."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.agents.models.loading import load
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.serving.backend import PolicyServers
from envgym.agents.policies.serving.client import ClientLimits, ServedPolicy
from envgym.agents.policies.weights import collective
from envgym.agents.policies.weights.collective import Rendezvous, WeightGroup, join, transports_of
from envgym.agents.policies.weights.transport import FileTransport, GroupTransport
from envgym.agents.policies.weights.weight_store import digest
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.errors import InvalidInput, PolicyFailure
from tests.agents.policies.serving.running import changed, scripted, serving
from tests.agents.policies.serving.test_client import INFO, QUICK, ask, made_up
from tests.agents.policies.small_models import generate, llama, request
from tests.support.retrievers import served_url
from tests.support.sources import ROOT

CPU = torch.device("cpu")


def gloo(timeout_s: float = 20) -> GroupTransport:
    return GroupTransport("gloo", device=CPU, timeout_s=timeout_s)


@contextmanager
def client(transport: GroupTransport, *urls: str, limits: ClientLimits = QUICK) -> Iterator[ServedPolicy]:
    policy = ServedPolicy(urls, transport=transport, limits=limits)
    try:
        yield policy
    finally:
        policy.close()


@contextmanager
def met() -> Iterator[tuple[WeightGroup, WeightGroup]]:
    """Yield both sides of a group."""
    meeting = Rendezvous.prepare("127.0.0.1", "gloo", timeout_s=20)
    joined = list[WeightGroup]()
    joining = threading.Thread(target=lambda: joined.append(join(meeting.address, CPU)))
    joining.start()
    run = meeting.meet(CPU)
    joining.join()
    yield run, joined[0]


def test_what_is_sent_is_received_bit_for_bit_in_buckets_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "c": torch.tensor(4),
        "d": torch.zeros(0, 3),
        "e": torch.randn(4, 10).T,
    }
    for size in (1, 64, 1 << 20):
        monkeypatch.setattr(collective, "_BUCKET_BYTES", size)
        with met() as (run, server):
            sending = threading.Thread(target=run.send, args=[sent.items()])
            sending.start()
            received = dict(server.receive(server.receive_description()))
            sending.join()
        assert list(received) == list(sent)
        for name, tensor in sent.items():
            assert (received[name].dtype, received[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(received[name], tensor)


def test_two_servers_sample_from_what_each_was_sent_over_a_group_of_its_own() -> None:
    model, transport = llama(), gloo()
    with (
        serving(llama()) as one,
        serving(llama()) as other,
        client(transport, one.http.url, other.http.url) as policy,
    ):
        assert policy.accepts_weights
        for version in (1, 2):
            policy.update_weights(changed(model, 1 + version / 8), version)
        assert len(transport.groups) == 2
        for server in (one, other):
            digests = {name: digest(parameter) for name, parameter in server._module.named_parameters()}
            assert digests == {name: digest(tensor) for name, tensor in changed(model, 1.25)}
        found = ask(policy, [request((5, 6, 7))])[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    expected = generate(TransformersPolicy(model), [request((5, 6, 7))])[0]
    assert (found.token_ids, found.policy_version) == (expected.token_ids, 2)
    assert transport.groups == {}


def test_a_server_that_returns_is_met_again_and_sent_the_newest() -> None:
    transport, limits = gloo(), replace(QUICK, watch_s=1000)
    with serving(llama()) as served, client(transport, served.http.url, limits=limits) as policy:
        policy.update_weights(changed(llama(), 1.5), 4)
        link = policy._fleet.links[0]
        policy._fleet.fail(link, link.state.DOWN, "gone")
        served._instance, served.weights.group = (
            "another",
            None,
        )  # as after another start, with the weights of its model
        served._policy.set_version(0)
        policy._loop.run(policy._fleet.look_at(link))
        assert (link.state, link.version, served._policy.version) == ("up", 4, 4)
        assert sorted(key.split()[1] == "another" for key in transport.groups) == [False, True]


def test_weights_that_are_not_all_are_refused_before_any_is_put_in_place() -> None:
    with serving(llama()) as served, client(gloo(), served.http.url) as policy:
        before = served.thread.run(served.weights.compute_digests())
        with pytest.raises(PolicyFailure, match=r"new weights must hold all 30, got 29, without lm_head\.weight"):
            policy.update_weights([pair for pair in changed(llama(), 2.0) if pair[0] != "lm_head.weight"], 1)
        assert served.weights.broken is None
        assert served.weights.hold is None
        assert served.thread.run(served.weights.compute_digests()) == before


@contextmanager
def server_process(cache: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    words = "policy-server tiny --engine transformers --device cpu --threads 1 --port 0"
    command = [sys.executable, "-m", "envgym", *words.split()]
    environment = {**os.environ, "ENVGYM_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process, served_url(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.processes
@pytest.mark.parametrize(
    "number, has_met, reason", [(signal.SIGKILL, False, ""), (signal.SIGSTOP, True, "TimeoutError")]
)
def test_a_server_that_dies_or_hangs_does_not_hang_the_run(
    tmp_path: Path, number: signal.Signals, has_met: bool, reason: str
) -> None:
    """The server is struck when the update has begun: it was asked to pause, and no weight was sent yet."""
    model: Any = load("tiny", dtype="float32", device="cpu").model
    limits = ClientLimits(timeout_s=60, update_timeout_s=3, watch_s=1000)
    transport = gloo(timeout_s=3)
    with server_process(tmp_path) as (process, url), client(transport, url, limits=limits) as policy:
        if has_met:
            policy.update_weights(model.named_parameters(), 1)
        link = policy._fleet.links[0]
        sound = link.ask

        async def striking(method: str, path: str, *arguments: Any, **named: Any) -> object:
            if path in {"/update_weights", "/init_weight_transfer_engine"}:
                process.send_signal(number)
            return await sound(method, path, *arguments, **named)

        link.ask = striking  # type: ignore[method-assign]  # of this link
        started = time.monotonic()
        with pytest.raises(PolicyFailure, match=rf"no policy server has the weights of version 2.*broken \(.*{reason}"):
            policy.update_weights(model.named_parameters(), 2)
        assert time.monotonic() - started < 18  # and not the 20 s of an update
        assert transport.groups == {}


# ---- bad input ------------------------------------------------------------------------------------------------------


def test_ways_that_a_device_or_a_server_does_not_have_are_refused(tmp_path: Path) -> None:
    assert transports_of(CPU) == ("files", "ipc", "gloo")
    assert transports_of(torch.device("cuda")) == ("files", "ipc", "gloo", "nccl")
    with pytest.raises(InvalidInput, match="transport of weights must be files or ipc or gloo on cpu, got nccl"):
        GroupTransport("nccl", device=CPU)
    routes = made_up(__envgym__info=lambda body: {**INFO, "transports": ["files"]})
    with scripted(routes) as server:
        with pytest.raises(InvalidInput, match=r"transport of weights must be one that the server takes, files, got g"):
            ServedPolicy([server.url], transport=gloo())
        ServedPolicy([server.url], transport=FileTransport(tmp_path)).close()


def test_the_backend_refuses_nccl_without_a_gpu() -> None:
    settings = ModelSettings.model_validate({"name": "tiny"})
    backend = PolicyServers(servers=("http://127.0.0.1:9",), transport="nccl")
    with pytest.raises(InvalidInput, match="transport of weights must be files or ipc or gloo on cpu, got nccl"):
        backend(settings, EngineSettings.model_validate({"device": "cpu"}), None, False)


def test_a_group_that_nobody_opens_is_told_and_leaves_the_server_sound() -> None:
    with serving(llama()) as served, client(gloo(), served.http.url) as policy:
        link = policy._fleet.links[0]
        info = {"host": "127.0.0.1", "port": 9, "backend": "gloo", "timeout_s": 1}
        for wrong, told in (({"init_info": info}, "500 "), ({"init_info": {}}, "400 init_info must say where")):
            with pytest.raises(Exception, match=told):
                policy._loop.run(link.ask("POST", "/init_weight_transfer_engine", wrong))
        assert asyncio.run(policy.compute_logprobs([(5,)])) == [(0.0,)]
