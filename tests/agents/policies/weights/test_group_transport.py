"""New weights over a process group with all policy servers, by gloo."""

import asyncio
import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from envgym.agents.models.loading import load
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.serving.backend import PolicyServers
from envgym.agents.policies.serving.client import ClientLimits, ServedPolicy
from envgym.agents.policies.weights import collective
from envgym.agents.policies.weights.channel import transports_of
from envgym.agents.policies.weights.transport import FileTransport, GroupTransport
from envgym.agents.policies.weights.weight_store import digest
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.errors import InvalidInput, PolicyFailure
from envgym.runtime.http.client import ConnectionFailed
from tests.agents.policies.serving.running import Served, changed, scripted, serving
from tests.agents.policies.serving.test_client import INFO, QUICK, ask, made_up
from tests.agents.policies.small_models import adapted, generate, llama, request, train_adapters
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


def digests_of(server: Served) -> dict[str, str]:
    return {name: digest(parameter) for name, parameter in server._module.named_parameters()}


def check_weights(servers: Iterable[Served], factor: float, version: int) -> None:
    for server in servers:
        assert digests_of(server) == {name: digest(tensor) for name, tensor in changed(llama(), factor)}
        assert server._policy.version == version


@contextmanager
def three() -> Iterator[list[Served]]:
    with serving(llama()) as one, serving(llama()) as two, serving(llama()) as three:
        yield [one, two, three]


def names(transport: GroupTransport) -> list[list[str]]:
    """Return the addresses of the servers of each group."""
    return [sorted(server.split()[0] for server in group.servers) for group in transport.groups]


def test_all_servers_sample_from_what_was_sent_over_one_group_that_is_kept() -> None:
    model, transport = llama(), gloo()
    with three() as servers, client(transport, *[server.http.url for server in servers]) as policy:
        assert policy.accepts_weights
        groups = list[object]()
        for version in (1, 2):
            policy.update_weights(changed(model, 1 + version / 8), version)
            groups += transport.groups
        check_weights(servers, 1.25, 2)
        assert groups == [groups[0]] * 2
        assert names(transport) == [sorted(server.http.url for server in servers)]
        found = ask(policy, [request((5, 6, 7))])[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    expected = generate(TransformersPolicy(model), [request((5, 6, 7))])[0]
    assert (found.token_ids, found.policy_version) == (expected.token_ids, 2)
    assert transport.groups == []


def test_a_server_that_joins_is_sent_the_newest_alone_and_is_in_the_group_of_the_next_update() -> None:
    transport = gloo()
    with three() as servers:
        urls = [server.http.url for server in servers]
        with client(transport, *urls[:2]) as policy:
            policy.update_weights(changed(llama(), 1.5), 4)
            assert names(transport) == [sorted(urls[:2])]
            policy._loop.run(policy._fleet.admit(policy._make_link(2, urls[2])))
            assert names(transport) == [urls[2:]], "the next update needs a group of three"
            check_weights(servers, 1.5, 4)
            policy.update_weights(changed(llama(), 1.75), 5)
            assert names(transport) == [sorted(urls)]
            check_weights(servers, 1.75, 5)
            policy._loop.run(policy._fleet.links.pop(0).close())  # it has left
            policy.update_weights(changed(llama(), 2.0), 6)
            assert names(transport) == [sorted(urls[1:])]
            check_weights(servers[1:], 2.0, 6)


@pytest.mark.parametrize("path", ["/pause?mode=keep", "/init_weight_transfer_engine", "/update_weights"])
def test_a_server_that_dies_in_an_update_takes_no_other_along(path: str) -> None:
    """Its connections end when a request arrives; in the last case it has then left the group in the middle."""
    transport = gloo(timeout_s=600)
    with three() as servers, client(transport, *[server.http.url for server in servers]) as policy:
        if path == "/update_weights":
            policy.update_weights(changed(llama(), 1.5), 4)
        lost: Any = policy._fleet.links[1]
        sound = lost.ask

        async def striking(method: str, asked: str, *arguments: Any, **named: Any) -> object:
            if asked == path:
                servers[1].weights._leave_group()
                raise ConnectionFailed("the server died")
            return await sound(method, asked, *arguments, **named)

        lost.ask = striking
        started = time.monotonic()
        policy.update_weights(changed(llama(), 1.75), 5)
        assert time.monotonic() - started < 300, "no wait runs out"
        check_weights((servers[0], servers[2]), 1.75, 5)
        assert [link.state for link in policy._fleet.links] == ["up", "broken", "up"]
        assert len(transport.groups) == path.startswith("/pause"), "then the others met without it"
        policy.update_weights(changed(llama(), 2.0), 6)
        check_weights((servers[0], servers[2]), 2.0, 6)
        assert names(transport) == [sorted(servers[number].http.url for number in (0, 2))]


@pytest.mark.parametrize("path", ["/weight_checker", "/start_weight_update"])
def test_a_server_that_hangs_before_it_receives_takes_no_other_along(path: str) -> None:
    """The update is one of adapters, so that each server is asked first whether it has the base."""
    transport, limits = gloo(timeout_s=0.7), replace(QUICK, update_timeout_s=600, watch_s=1000)
    model = adapted(llama())
    train_adapters(model, seed=1)
    with three() as servers, client(transport, *[server.http.url for server in servers], limits=limits) as policy:
        lost: Any = policy._fleet.links[1]
        sound = lost.ask

        async def hanging(method: str, asked: str, *arguments: Any, **named: Any) -> object:
            if asked == path:
                async with asyncio.timeout(named["timeout_s"]):
                    await asyncio.Event().wait()
            return await sound(method, asked, *arguments, **named)

        lost.ask = hanging
        started = time.monotonic()
        policy.update_weights(merged_weights(model), 1)
        assert time.monotonic() - started < 300, "and not the 600 s of an update"
        assert [link.state for link in policy._fleet.links] == ["up", "broken", "up"]
        for server in (servers[0], servers[2]):
            assert digests_of(server) == {name: digest(tensor) for name, tensor in merged_weights(model)}
        if path == "/weight_checker":
            assert "the server was not ready 0.7 s after another server" in lost.reason


def test_a_server_that_fails_while_it_receives_ends_its_connections_at_once() -> None:
    with three() as servers, client(gloo(600), *[server.http.url for server in servers]) as policy:
        base: Any = servers[1].weights.base

        def refuse() -> None:
            raise RuntimeError("no memory is left")

        base.clear = refuse
        started = time.monotonic()
        policy.update_weights(changed(llama(), 1.5), 4)
        assert time.monotonic() - started < 300, "no wait runs out"
        check_weights((servers[0], servers[2]), 1.5, 4)
        assert [link.state for link in policy._fleet.links] == ["up", "broken", "up"]
        assert "a weight update failed: RuntimeError: no memory is left" in policy._fleet.links[1].reason


def test_a_group_that_cannot_listen_is_a_failure_of_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **named: Any) -> object:
        raise dist.DistNetworkError("the port cannot be reached")

    monkeypatch.setattr(collective, "TCPStore", refuse)
    with serving(llama()) as served, client(gloo(), served.http.url) as policy:
        with pytest.raises(PolicyFailure, match="the weights could not be sent: the port cannot be reached"):
            policy.update_weights(changed(llama(), 1.5), 4)
        assert [link.state for link in policy._fleet.links] == ["broken"]


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
        newest = transport.groups[-1]
        assert [server.split()[1] for server in newest.servers] == ["another"]


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
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_hangs_takes_no_other_server_along(tmp_path: Path, number: signal.Signals) -> None:
    """The server is struck when the update has begun: it was asked to pause, and no weight was sent yet."""
    model: Any = load("tiny", dtype="float32", device="cpu").model
    limits = ClientLimits(timeout_s=60, update_timeout_s=600, watch_s=1000)
    transport = gloo(timeout_s=1)
    with (
        server_process(tmp_path) as (process, url),
        serving(copy.deepcopy(model)) as sound,
        client(transport, url, sound.http.url, limits=limits) as policy,
    ):
        policy.update_weights(model.named_parameters(), 1)
        link = policy._fleet.links[0]
        ask_sound = link.ask

        async def striking(method: str, path: str, *arguments: Any, **named: Any) -> object:
            if path == "/update_weights":
                process.send_signal(number)
            return await ask_sound(method, path, *arguments, **named)

        link.ask = striking  # type: ignore[method-assign]  # of this link
        started = time.monotonic()
        policy.update_weights(changed(model, 1.5), 2)
        assert time.monotonic() - started < 300  # and not the 600 s of an update
        assert [link.state for link in policy._fleet.links] == ["broken", "up"]
        if number == signal.SIGSTOP:
            assert "the weights could not be sent: the server did nothing for 1 s" in link.reason
        assert digests_of(sound) == {name: digest(tensor) for name, tensor in changed(model, 1.5)}
        assert transport.groups == []


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
        info = {"host": "127.0.0.1", "port": 9, "backend": "gloo", "timeout_s": 1, "rank": 1, "world_size": 2}
        for wrong, told in (({"init_info": info}, "500 "), ({"init_info": {}}, "400 init_info must say where")):
            with pytest.raises(Exception, match=told):
                policy._loop.run(link.ask("POST", "/init_weight_transfer_engine", wrong))
        assert asyncio.run(policy.compute_logprobs([(5,)])) == [(0.0,)]
