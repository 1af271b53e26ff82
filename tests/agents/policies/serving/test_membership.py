"""Policy servers that join and leave: checked, given the newest weights, drained; and requests that wait for them."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.serving.client import ServedPolicy
from envgym.agents.policies.serving.wire import error_reply
from envgym.agents.policies.weights.transport import FileTransport
from envgym.agents.policies.weights.weight_store import compute_digests
from envgym.errors import PolicyFailure
from envgym.runs.files import SERVERS
from envgym.runtime.http.server import HttpReply, HttpRequest, HttpServer
from envgym.runtime.membership import ServerKind, WatchedServers, write_servers
from tests.agents.policies.serving.running import changed, scripted, serving
from tests.agents.policies.serving.test_client import INFO, QUICK, ask, made_up
from tests.agents.policies.small_models import contexts, generate, llama, request
from tests.support.env_server import WAIT_S, wait_until
from tests.support.http_server import http_thread

LIMITS = replace(QUICK, follow_s=0.02, wait_s=WAIT_S)


class Elastic:
    """A policy whose servers are those of a list."""

    def __init__(self, folder: Path, *urls: str, **limits: Any) -> None:
        self._file = folder / SERVERS
        self.set(*urls)
        watched = WatchedServers(self._file, ServerKind.POLICY)
        transport = FileTransport(folder / "weights")
        self.policy = ServedPolicy(urls, transport=transport, limits=replace(LIMITS, **limits), servers=watched)

    def set(self, *urls: str) -> None:
        write_servers(self._file, {ServerKind.POLICY: urls, ServerKind.ENV: ()})

    def used(self) -> list[str]:
        return [link.url for link in self.policy._fleet.links if link.is_usable]


@contextmanager
def elastic(folder: Path, *urls: str, **limits: Any) -> Iterator[Elastic]:
    made = Elastic(folder, *urls, **limits)
    try:
        yield made
    finally:
        made.policy.close()


class Held:
    """Answers that wait until they are let go."""

    def __init__(self) -> None:
        self.num_asked, self.go = 0, threading.Event()


@contextmanager
def holding(path: str = "/inference/v1/generate") -> Iterator[tuple[str, Held]]:
    """Serve answers, those to one path held back, from a thread each, and yield the address."""
    held, routes = Held(), made_up()

    async def reply(asked: HttpRequest) -> HttpReply:
        if asked.path == path:
            held.num_asked += 1
            await asyncio.to_thread(held.go.wait, WAIT_S)
        if asked.path not in routes:
            return error_reply(404, "there is no such route")
        value: Any = routes[asked.path]({})
        return value if isinstance(value, HttpReply) else HttpReply.of_json(value)

    with http_thread(HttpServer(reply)) as server:
        try:
            yield server.url, held
        finally:
            held.go.set()


def test_a_server_that_joins_has_the_newest_weights_bit_for_bit(tmp_path: Path) -> None:
    with serving(llama()) as first, serving(llama()) as second, elastic(tmp_path, first.http.url) as fleet:
        fleet.policy.update_weights(changed(llama(), 1.1), 7)
        fleet.set(first.http.url, second.http.url)
        wait_until(lambda: fleet.used() == [first.http.url, second.http.url])
        assert second._policy.version == 7
        expected = compute_digests(changed(llama(), 1.1))
        assert compute_digests(second._module.named_parameters()) == expected
        fleet.set(second.http.url)
        wait_until(lambda: fleet.used() == [second.http.url])
        inside = TransformersPolicy(llama(), deterministic=False)
        inside.update_weights(changed(llama(), 1.1), 7)
        for item in (request(context, seed=3) for context in contexts(4)):
            assert ask(fleet.policy, [item]) == generate(inside, [item])


def test_a_server_that_claims_the_version_of_other_weights_is_given_the_right_ones(tmp_path: Path) -> None:
    with serving(llama()) as first, serving(llama(), version=7) as second, elastic(tmp_path, first.http.url) as fleet:
        fleet.policy.update_weights(changed(llama(), 1.1), 7)
        fleet.set(first.http.url, second.http.url)
        wait_until(lambda: len(fleet.used()) == 2)
        assert compute_digests(second._module.named_parameters()) == compute_digests(changed(llama(), 1.1))


@pytest.mark.parametrize(
    "info, told",
    [
        ({"weight_version": "4"}, "server that joins must serve version 3, got 4"),
        ({"protocol": 5}, "protocol of the server must be 4, got 5"),
        ({"transports": ["nccl"]}, "transport of weights must be one that the server takes, nccl, got files"),
        ({"other": 1}, "server must be a policy server"),
    ],
)
def test_a_server_that_does_not_fit_is_named_in_one_sentence_and_joins_when_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, info: dict[str, Any], told: str
) -> None:
    monkeypatch.setattr("envgym.runtime.membership.AGAIN_S", 0.02)
    changes, num_asked = dict(info), 0

    def say(body: Any) -> dict[str, Any]:
        nonlocal num_asked
        num_asked += 1
        return {**INFO, **changes}

    with (
        scripted(made_up()) as first,
        scripted(made_up(__envgym__info=say)) as second,
        elastic(tmp_path, first.url) as fleet,
    ):
        fleet.set(first.url, second.url)
        wait_until(lambda: num_asked > 3)
        assert fleet.used() == [first.url]
        (record,) = caplog.records
        assert told in record.getMessage()
        changes.clear()
        wait_until(lambda: fleet.used() == [first.url, second.url])
    assert len(caplog.records) == 1


def test_a_server_that_leaves_answers_what_it_was_asked_and_is_asked_nothing_new(tmp_path: Path) -> None:
    with holding() as (url, held), scripted(made_up()) as other, elastic(tmp_path, url) as fleet:
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(ask, fleet.policy, [request((1, 2))])
            wait_until(lambda: held.num_asked == 1)
            fleet.set(other.url)
            wait_until(lambda: fleet.used() == [other.url])
            assert ask(fleet.policy, [request((3, 4))])[0].token_ids == (7, 8, 9)
            assert "leaving" in fleet.policy._fleet.queue.describe()
            held.go.set()
            assert asked.result(WAIT_S)[0].token_ids == (7, 8, 9)
        wait_until(lambda: url not in fleet.policy._fleet.queue.describe())
        assert held.num_asked == 1


@pytest.mark.parametrize("path", ["/metrics", "/inference/v1/generate"])
def test_what_is_asked_when_the_policy_closes_leaves_no_connection_open(tmp_path: Path, path: str) -> None:
    with holding(path) as (url, held), ThreadPoolExecutor(1) as thread:
        watch_s = QUICK.watch_s if path == "/metrics" else 1000.0  # no look at the server beside the request
        with elastic(tmp_path, url, watch_s=watch_s) as fleet:
            (link,) = fleet.policy._fleet.links
            asked = thread.submit(ask, fleet.policy, [request((1, 2))])
            wait_until(lambda: held.num_asked == 1)
            if path == "/metrics":
                asked.result(WAIT_S)  # so that one connection is busy
            wait_until(lambda: len(link._connections._busy) == 1)  # a look that took too long is followed by another
            (connection,) = link._connections._busy
        sock = connection.transport.get_extra_info("socket")
        assert sock.fileno() == -1
        assert isinstance(asked.exception(WAIT_S), asyncio.CancelledError) is (path != "/metrics")


def test_more_servers_have_more_requests_under_way(tmp_path: Path) -> None:
    with (
        holding() as (url, held),
        holding() as (other_url, other),
        elastic(tmp_path, url, max_concurrency=1) as fleet,
        ThreadPoolExecutor(1) as thread,
    ):
        asked = thread.submit(ask, fleet.policy, [request((1, 2)), request((3, 4)), request((5, 6))])
        wait_until(lambda: held.num_asked == 1)
        assert sum(link.under_way for link in fleet.policy._fleet.links) == 1
        fleet.set(url, other_url)
        wait_until(lambda: other.num_asked == 1)
        assert sum(link.under_way for link in fleet.policy._fleet.links) == 2
        held.go.set()
        other.go.set()
        assert len(asked.result(WAIT_S)) == 3


def test_a_request_waits_for_the_server_that_joins_and_no_longer_than_it_may(tmp_path: Path) -> None:
    with scripted(made_up()) as first, scripted(made_up()) as second, elastic(tmp_path, first.url) as fleet:
        fleet.set()
        wait_until(lambda: not fleet.policy._fleet.links)
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(ask, fleet.policy, [request((1, 2))])
            wait_until(lambda: bool(fleet.policy._fleet.queue.waiting))
            fleet.set(second.url)
            assert asked.result(WAIT_S)[0].token_ids == (7, 8, 9)
    with scripted(made_up()) as first, elastic(tmp_path, first.url, wait_s=0.1) as fleet:
        fleet.set()
        wait_until(lambda: not fleet.policy._fleet.links)
        with pytest.raises(PolicyFailure, match="no policy server is up: all have left"):
            ask(fleet.policy, [request((1, 2))])


def test_an_update_that_no_server_is_there_to_take_waits_for_one(tmp_path: Path) -> None:
    with serving(llama()) as first, serving(llama()) as second, elastic(tmp_path, first.http.url) as fleet:
        fleet.set()
        wait_until(lambda: not fleet.policy._fleet.links)
        with ThreadPoolExecutor(1) as thread:
            updating = thread.submit(fleet.policy.update_weights, changed(llama(), 1.1), 1)
            wait_until(lambda: bool(fleet.policy._fleet.queue.waiting))
            fleet.set(second.http.url)
            updating.result(WAIT_S)
        assert second._policy.version == 1
    with serving(llama()) as first, elastic(tmp_path, first.http.url, wait_s=0.1) as fleet:
        fleet.set()
        wait_until(lambda: not fleet.policy._fleet.links)
        with pytest.raises(PolicyFailure, match="no policy server is up"):
            fleet.policy.update_weights(changed(llama(), 1.2), 2)


def test_a_server_that_joins_before_any_update_is_called_what_the_others_are(tmp_path: Path) -> None:
    with serving(llama()) as first, serving(llama()) as second, elastic(tmp_path, first.http.url) as fleet:
        fleet.policy.set_version(5)
        fleet.set(first.http.url, second.http.url)
        wait_until(lambda: len(fleet.used()) == 2)
        assert second._policy.version == 5


def test_a_server_that_is_added_again_while_it_leaves_stays(tmp_path: Path) -> None:
    with holding() as (url, held), elastic(tmp_path, url) as fleet, ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask, fleet.policy, [request((1, 2))])
        wait_until(lambda: held.num_asked == 1)
        fleet.set()
        wait_until(lambda: not fleet.used())
        fleet.set(url)
        wait_until(lambda: fleet.used() == [url])
        held.go.set()
        assert asked.result(WAIT_S)[0].token_ids == (7, 8, 9)
        wait_until(lambda: len(fleet.policy._fleet.links) == 1)
