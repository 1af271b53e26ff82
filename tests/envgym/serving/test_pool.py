"""Environment servers that join and leave: new episodes go to those of the list, and those under way go on."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym import Env, Split
from envgym.errors import EnvFailure, InvalidInput
from envgym.runs.files import SERVERS
from envgym.runtime import membership
from envgym.runtime.membership import ServerKind, WatchedServers, write_servers
from envgym.serving import pool as pool_module
from envgym.serving.client import ClientIo
from envgym.serving.pool import ServerPool, pool_of
from envgym.serving.remote_env import RemoteEnv, remote_id
from envgym.serving.server import EnvServer
from tests.support.env_server import COUNTER, WAIT_S, running_server, wait_until
from tests.support.sources import ROOT

NOBODY = "http://127.0.0.1:9"


class Followed:
    def __init__(self, folder: Path, *urls: str) -> None:
        self.file, self.urls = folder / SERVERS, urls
        self.set(*urls)

    @property
    def pool(self) -> ServerPool:
        return pool_of(self.urls)

    def set(self, *urls: str) -> None:
        write_servers(self.file, {ServerKind.POLICY: (), ServerKind.ENV: urls})

    def is_used(self, *urls: str) -> bool:
        return {client.url for client in self.pool.clients} == set(urls)


@contextmanager
def following(folder: Path, *servers: EnvServer, wait_s: float = WAIT_S) -> Iterator[Followed]:
    followed = Followed(folder, *(server.http.url for server in servers))
    with followed.pool.following(WatchedServers(followed.file, ServerKind.ENV), wait_s=wait_s):
        yield followed
    wait_until(lambda: not any(thread.name == "env-servers" for thread in threading.enumerate()))


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FOLLOW_S", 0.02)
    monkeypatch.setattr(membership, "AGAIN_S", 0.02)


def test_new_episodes_use_a_newcomer_and_those_of_a_leaving_server_go_on(tmp_path: Path) -> None:
    with (
        running_server(COUNTER) as first,
        running_server(COUNTER) as second,
        following(tmp_path, first) as followed,
        closing(envgym.make(remote_id(followed.urls, COUNTER))) as env,
    ):
        env.reset(seed=0)
        followed.set(second.http.url)
        wait_until(lambda: followed.is_used(second.http.url))
        assert env.step("go").observation == "turn 1"
        with closing(envgym.make(remote_id(followed.urls, COUNTER))) as other:
            other.reset(seed=0)
            assert (len(first.sessions), len(second.sessions)) == (1, 1)
        with closing(env.fork()) as twin:  # where it is
            assert twin.step("go").observation == env.step("go").observation == "turn 2"
        env.close()
        wait_until(lambda: not followed.pool._left)
        assert first.metrics.opened == second.metrics.opened == 1


def test_an_episode_whose_server_has_gone_fails_at_once_and_no_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envgym.serving.client.RECONNECT_S", 1000.0)  # for which a server that may come back is asked
    with running_server(COUNTER) as stays, running_server(COUNTER) as goes, following(tmp_path, goes) as followed:
        env, kept = (envgym.make(remote_id(followed.urls, COUNTER)) for _ in range(2))
        env.reset(seed=0)
        followed.set(stays.http.url)
        wait_until(lambda: followed.is_used(stays.http.url))
        kept.reset(seed=0)
        client = followed.pool._left[goes.http.url]
        client._place = ("127.0.0.1", 9)
        client.close_idle()
        record = env.step("go").info["envgym"]
        assert record.ending == "ERROR_ENV"
        assert "environment server must answer" in record.error
        assert lost(env)
        assert not lost(kept)
        assert kept.step("go").observation == "turn 1"
        client._place = ("127.0.0.1", int(goes.http.url.rpartition(":")[2]))
        env.close()
        kept.close()


def test_connections_that_nobody_has_used_for_a_while_are_closed() -> None:
    with running_server(COUNTER) as server, closing(envgym.make(remote_id((server.http.url,), COUNTER))) as env:
        env.reset(seed=0)
        client = pool_of((server.http.url,)).clients[0]
        (newest,) = client._idle
        burst = [client._connect() for _ in range(3)]
        burst[-1].last_used = newest.last_used
        client._idle.extendleft(reversed(burst))
        wait_until(lambda: len(server.http.connections) == 4)
        env.step("go")
        assert list(client._idle) == [burst[-1], newest]
        wait_until(lambda: len(server.http.connections) == 2)


def test_connections_are_closed_at_the_end_of_the_process() -> None:
    with running_server("math/arithmetic-v0") as server:
        url = remote_id((server.http.url,), "math/arithmetic-v0")
        program = f"import envgym\nenvgym.make({url!r}).close()"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default::ResourceWarning"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert (done.stdout, done.stderr) == ("", "")


def noted_wait(pool: ServerPool, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set as soon as somebody waits for a server."""
    is_waiting, wait = threading.Event(), pool._wait_for_server

    async def wait_noted(io: ClientIo, deadline: float) -> None:
        is_waiting.set()
        await wait(io, deadline)

    monkeypatch.setattr(pool, "_wait_for_server", wait_noted)
    return is_waiting


@contextmanager
def joined_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Followed, EnvServer, Env[Any]]]:
    """Yield an env whose reset has waited until a server joined, with that server and the list."""
    with (
        running_server(COUNTER) as first,
        running_server(COUNTER) as second,
        following(tmp_path, first) as followed,
        closing(envgym.make(remote_id(followed.urls, COUNTER))) as env,
        ThreadPoolExecutor(1) as thread,
    ):
        followed.set()
        wait_until(followed.is_used)
        is_waiting = noted_wait(followed.pool, monkeypatch)
        waiting = thread.submit(env.reset, seed=0)
        assert is_waiting.wait(WAIT_S)
        followed.set(second.http.url)
        assert waiting.result(WAIT_S).observation
        yield followed, second, env


def test_an_episode_waits_for_a_server_to_join_and_no_longer_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with joined_late(tmp_path, monkeypatch) as (followed, second, env):
        assert len(second.sessions) == 1
        assert not lost(env)
        followed.set()
        wait_until(followed.is_used)
        followed.pool._wait_s = 0.1
        env.close()
        must = r"an environment server must answer within 0\.1 s, got none \(all servers of the run\)"
        with pytest.raises(EnvFailure, match=must):
            env.reset(seed=0)
        assert lost(env)
        with pytest.raises(EnvFailure, match=must):
            env.unwrapped.tasks.task(Split.TRAIN, 1)


def test_an_environment_is_described_by_the_servers_that_answer_and_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        running_server(COUNTER) as gone,
        running_server(COUNTER) as stays,
        following(tmp_path, gone) as followed,
        ThreadPoolExecutor(1) as thread,
    ):
        gone_client = followed.pool.clients[0]
        gone_client._place = ("127.0.0.1", 9)  # where nobody listens
        is_waiting = noted_wait(followed.pool, monkeypatch)
        described = thread.submit(followed.pool.describe, COUNTER, {})
        assert is_waiting.wait(WAIT_S)
        followed.set(gone.http.url, stays.http.url)
        assert described.result(WAIT_S)["digest"] == stays.templates.get(COUNTER, {}).description["digest"]
        assert len(followed.pool.clients) == 2  # the other is used when it answers again
        followed.set()
        wait_until(followed.is_used)
        followed.pool._wait_s = 0.1
        with pytest.raises(InvalidInput, match=r"an environment server must answer within 0\.1 s, got none"):
            followed.pool.describe(COUNTER, {})


def test_a_server_is_waited_for_longer_than_a_busy_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.serving.held_session.BUSY_S", 0.0)
    with joined_late(tmp_path, monkeypatch):
        pass  # it did


def test_a_server_of_something_else_does_not_join_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        running_server("math/arithmetic-v0", settings={"max_turns": 1}) as first,
        running_server("math/arithmetic-v0", settings={"max_turns": 2}) as other,
        running_server(COUNTER) as stranger,
        following(tmp_path, first) as followed,
        closing(envgym.make(remote_id(followed.urls, "math/arithmetic-v0"))),
    ):
        followed.set(first.http.url, other.http.url, stranger.http.url, NOBODY)
        wait_until(lambda: min(server.metrics.requests.total() for server in (other, stranger)) > 3)  # again and again
        assert followed.is_used(first.http.url)
        told = [record.getMessage() for record in caplog.records if record.name == "envgym.runtime.membership"]
        assert len(told) == 3
        for url, sentence in (
            (other.http.url, "math/arithmetic-v0 of the servers must be the same, got two"),
            (stranger.http.url, "math/arithmetic-v0"),
            (NOBODY, "environment server must answer, got "),
        ):
            assert sum(line.startswith(f"{url} cannot join: ") and sentence in line for line in told) == 1, told


def lost(env: Env[Any]) -> bool:
    assert isinstance(env.unwrapped, RemoteEnv)
    return env.unwrapped.has_lost_session


def test_a_later_run_begins_with_the_servers_of_its_settings(tmp_path: Path) -> None:
    with running_server(COUNTER) as first, running_server(COUNTER) as second:
        for _ in range(2):
            with following(tmp_path, first) as followed:
                assert followed.is_used(first.http.url)
                followed.set(second.http.url)
                wait_until(lambda: followed.is_used(second.http.url))  # called at once


def test_a_pool_is_as_constructed_when_its_block_ends_and_sessions_still_held_go_on(tmp_path: Path) -> None:
    with running_server(COUNTER) as first, running_server(COUNTER) as second:
        with following(tmp_path, first) as followed, closing(envgym.make(remote_id(followed.urls, COUNTER))) as env:
            env.reset(seed=0)
            terms = followed.pool.clients[0].lease_s
            followed.set(second.http.url)
            wait_until(lambda: followed.is_used(second.http.url))
            later = envgym.make(remote_id(followed.urls, COUNTER))
            later.reset(seed=0)
            followed.set()
            wait_until(followed.is_used)
        (client,) = followed.pool.clients
        assert (client.url, client.has_left, client.lease_s) == (first.http.url, False, terms)
        with closing(envgym.make(remote_id(followed.urls, COUNTER))) as env:
            env.reset(seed=0)
            assert (first.metrics.opened, second.metrics.opened) == (2, 1)
        assert later.step("go").observation == "turn 1"
        later.close()
        wait_until(lambda: not second.http.connections)  # none stays open for a server that has left


def test_the_end_of_a_block_ends_the_wait_for_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server(COUNTER) as first, ThreadPoolExecutor(1) as thread:
        with (
            following(tmp_path, first, wait_s=300) as followed,
            closing(envgym.make(remote_id(followed.urls, COUNTER))) as env,
        ):
            followed.set()
            wait_until(followed.is_used)
            is_waiting = noted_wait(followed.pool, monkeypatch)
            waiting = thread.submit(env.reset, seed=0)
            assert is_waiting.wait(WAIT_S)
        with pytest.raises(EnvFailure, match="an environment server must answer before the run ends"):
            waiting.result(WAIT_S)
