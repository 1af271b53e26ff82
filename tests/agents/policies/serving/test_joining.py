"""Servers that join, return or start late: nothing waits for them, and none is used before it is as the others are."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.serving.client import ServedPolicy
from envgym.agents.policies.serving.link import ServerState
from envgym.agents.policies.weights.transport import FileTransport
from envgym.agents.policies.weights.weight_store import compute_digests
from envgym.errors import InvalidInput
from envgym.runs.files import SERVERS
from envgym.runtime.http.server import HttpReply, HttpRequest, HttpServer
from envgym.runtime.membership import ServerKind, WatchedServers, write_servers
from tests.agents.policies.serving.running import Served, changed, scripted, serving
from tests.agents.policies.serving.test_client import INFO, QUICK, ask, client, made_up
from tests.agents.policies.serving.test_membership import LIMITS, Elastic, elastic
from tests.agents.policies.small_models import llama, request
from tests.support.env_server import WAIT_S, wait_until

NOBODY = "http://127.0.0.1:9"


class HeldRequests:
    """Requests for one path that wait until they are let go."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count, self.go = 0, threading.Event()


@contextmanager
def holding_at(served: Served, path: str) -> Iterator[HeldRequests]:
    """Hold the first request for a path of a server."""
    held, answer = HeldRequests(), served._handle

    async def answer_later(asked: HttpRequest) -> HttpReply:
        if asked.path == path:
            held.count += 1
            if held.count == 1:
                await asyncio.to_thread(held.go.wait, WAIT_S)
        return await answer(asked)

    served.http.handler = answer_later
    try:
        yield held
    finally:
        held.go.set()


# ---- transfers that take long ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/pause", "/update_weights", "/weight_checker", "/resume"])
def test_updates_do_not_wait_for_a_server_that_hangs_while_it_joins(tmp_path: Path, path: str) -> None:
    with (
        serving(llama()) as first,
        serving(llama()) as second,
        elastic(tmp_path, first.http.url, update_timeout_s=WAIT_S) as fleet,
        holding_at(second, path) as held,
    ):
        fleet.policy.update_weights(changed(llama(), 1.1), 1)
        fleet.set(first.http.url, second.http.url)
        wait_until(lambda: held.count == 1)
        for version in (2, 3, 4):
            fleet.policy.update_weights(changed(llama(), 1.0 + version / 10), version)
            assert fleet.used() == [first.http.url]
            assert ask(fleet.policy, [request((5, 6, 7))])[0].policy_version == version
        held.go.set()
        wait_until(lambda: len(fleet.used()) == 2)
        assert second._policy.version == 4  # and not 1, which it was taking and which was kept until it had it
        assert compute_digests(second._module.named_parameters()) == compute_digests(changed(llama(), 1.4))
        fleet.policy.update_weights(changed(llama(), 1.5), 5)
        assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == [
            "version-00000004",
            "version-00000005",
        ]


def test_updates_do_not_wait_for_a_server_that_hangs_while_it_returns(tmp_path: Path) -> None:
    with (
        serving(llama()) as first,
        serving(llama()) as second,
        client(tmp_path, first.http.url, second.http.url, limits=replace(QUICK, watch_s=1000)) as policy,
        holding_at(second, "/update_weights") as held,
    ):
        returning = policy._fleet.links[1]
        policy._loop.run(fail(policy, 1))
        policy.update_weights(changed(llama(), 1.1), 1)
        looking = policy._loop.begin(policy._fleet.look_at(returning))
        wait_until(lambda: held.count == 1)
        policy.update_weights(changed(llama(), 1.2), 2)
        assert not returning.is_usable
        held.go.set()
        looking.result(WAIT_S)
        assert (returning.is_usable, second._policy.version, returning.version) == (True, 2, 2)


async def fail(policy: ServedPolicy, number: int) -> None:
    """Take a server for one that does not answer."""
    link = policy._fleet.links[number]
    policy._fleet.fail(link, ServerState.DOWN, TimeoutError("it did not answer"))


def test_a_server_that_never_takes_its_weights_is_named_and_joins_when_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving(llama()) as first,
        serving(llama()) as second,
        elastic(tmp_path, first.http.url, update_timeout_s=2.0) as fleet,
        holding_at(second, "/pause") as held,
    ):
        fleet.policy.update_weights(changed(llama(), 1.1), 1)
        fleet.set(first.http.url, second.http.url)
        wait_until(lambda: bool(caplog.records))
        assert "server must take the weights of version 1, got TimeoutError" in caplog.records[0].getMessage()
        held.go.set()
        wait_until(lambda: len(fleet.used()) == 2)


def test_a_server_that_takes_longer_than_a_step_is_named_and_joins_when_steps_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving(llama()) as first,
        serving(llama()) as second,
        elastic(tmp_path, first.http.url) as fleet,
    ):
        answer = second._handle

        async def learn_meanwhile(asked: HttpRequest) -> HttpReply:
            if asked.path == "/weight_checker" and (version := second._policy.version) < 5:
                await asyncio.to_thread(fleet.policy.update_weights, changed(llama(), 1.5 + version), version + 1)
            return await answer(asked)

        fleet.policy.update_weights(changed(llama(), 1.1), 1)
        second.http.handler = learn_meanwhile
        fleet.set(first.http.url, second.http.url)
        wait_until(lambda: len(fleet.used()) == 2)
        (told,) = [record.getMessage() for record in caplog.records]
        assert told.startswith(f"{second.http.url} is not used yet: 3 times in a row newer weights came while it was")


# ---- servers that start late ----------------------------------------------------------------------------------------


def test_a_policy_begins_with_the_servers_that_answer_and_takes_the_others_later(tmp_path: Path) -> None:
    with serving(llama(), version=3) as first, serving(llama(), version=3) as late:
        port, routes = int(late.http.url.rpartition(":")[2]), late.http.handler
        late.thread.run(late.http.close())
        with client(tmp_path, late.http.url, first.http.url) as policy:
            assert policy.accepts_weights
            policy.update_weights(changed(llama(), 1.1), 4)
            late.http = HttpServer(routes)
            late.thread.run(late.http.listen("127.0.0.1", port))
            wait_until(lambda: all(link.is_usable for link in policy._fleet.links))
            assert (first._policy.version, late._policy.version) == (4, 4)


def test_a_server_that_was_started_again_elsewhere_is_waited_for_by_the_list(tmp_path: Path) -> None:
    file = tmp_path / SERVERS
    write_servers(file, {ServerKind.POLICY: (NOBODY,), ServerKind.ENV: ()})
    with serving(llama(), version=3) as served, ThreadPoolExecutor(1) as thread:
        connecting = thread.submit(
            ServedPolicy,
            [NOBODY],
            transport=FileTransport(tmp_path / "weights"),
            limits=LIMITS,
            servers=WatchedServers(file, ServerKind.POLICY),
        )
        write_servers(file, {ServerKind.POLICY: (served.http.url,), ServerKind.ENV: ()})
        policy = connecting.result(WAIT_S)
        try:
            assert policy.accepts_weights
            assert policy._fleet.version == 3
            assert ask(policy, [request((5, 6, 7))])[0].policy_version == 3
        finally:
            policy.close()


def test_a_policy_waits_for_its_first_server_no_longer_than_it_may(tmp_path: Path) -> None:
    must = r"a policy server must be up within 0\.1 s, got http://127\.0\.0\.1:9 is down \(PolicyServerUnreachable"
    with pytest.raises(InvalidInput, match=must):
        Elastic(tmp_path, NOBODY, wait_s=0.1)


def test_a_wrong_server_is_refused_at_once_beside_one_that_does_not_answer(tmp_path: Path) -> None:
    with (
        scripted(made_up(__envgym__info=lambda body: {**INFO, "protocol": 5})) as wrong,
        pytest.raises(InvalidInput, match="protocol of the server must be 4, got 5"),
    ):
        Elastic(tmp_path, NOBODY, wrong.url)


# ---- what is compared -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "info, told",
    [
        ({"max_context": 98}, "server that joins must have room for 99 tokens, got 98"),
        ({"transports": []}, "server that joins must take new weights, as the others do, got one that takes none"),
    ],
)
def test_a_server_that_could_not_do_what_others_do_does_not_join(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, info: dict[str, Any], told: str
) -> None:
    with (
        scripted(made_up()) as first,
        scripted(made_up(__envgym__info=lambda body: {**INFO, **info})) as second,
        scripted(made_up(__envgym__info=lambda body: {**INFO, "max_context": 100})) as third,
        elastic(tmp_path, first.url) as fleet,
    ):
        fleet.set(first.url, second.url, third.url)
        wait_until(lambda: fleet.used() == [first.url, third.url] and bool(caplog.records))
        (record,) = caplog.records
        assert record.getMessage().startswith(f"{second.url} cannot join: {told}")
        assert {item.token_ids for item in ask(fleet.policy, [request((1, 2)) for _ in range(8)])} == {(7, 8, 9)}


@pytest.mark.parametrize("instance", ["", "started again"])
@pytest.mark.parametrize(
    "info, told", [({"max_context": 98}, "room for 99 tokens, got 98"), ({"weight_version": "4"}, "version 3, got 4")]
)
def test_a_server_that_returns_as_less_than_it_was_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, info: dict[str, Any], told: str, instance: str
) -> None:
    changes: dict[str, Any] = {}
    with (
        scripted(made_up(__envgym__info=lambda body: {**INFO, **changes})) as server,
        client(tmp_path, server.url, limits=replace(QUICK, watch_s=1000)) as policy,
    ):
        link = policy._fleet.links[0]
        policy._loop.run(fail(policy, 0))
        changes.update(info, instance=instance)
        for _ in range(2):
            policy._loop.run(policy._fleet.look_at(link))
        assert (link.is_usable, told in link.reason) == (False, True)
        (record,) = caplog.records
        assert record.getMessage().startswith(f"{server.url} cannot be used: server that joins must ")
        changes.clear()
        policy._loop.run(policy._fleet.look_at(link))
        assert link.is_usable


def test_an_update_waits_for_the_only_server_to_return(tmp_path: Path) -> None:
    with (
        serving(llama()) as server,
        client(tmp_path, server.http.url, limits=replace(QUICK, watch_s=0.5, wait_s=WAIT_S)) as policy,
    ):
        policy._loop.run(fail(policy, 0))
        policy.update_weights(changed(llama(), 1.1), 1)
        assert (server._policy.version, policy._fleet.links[0].version) == (1, 1)


def test_a_server_that_missed_a_change_of_name_is_called_what_the_others_are(tmp_path: Path) -> None:
    with (
        serving(llama()) as first,
        serving(llama()) as second,
        client(tmp_path, first.http.url, second.http.url, limits=replace(QUICK, watch_s=1000)) as policy,
    ):
        policy.update_weights(changed(llama(), 1.1), 1)
        policy._loop.run(fail(policy, 1))
        policy.set_version(7)
        link = policy._fleet.links[1]
        policy._loop.run(policy._fleet.look_at(link))
        assert link.is_usable
        assert (first._policy.version, second._policy.version, link.version) == (7, 7, 7)
