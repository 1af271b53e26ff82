"""A server holds sessions, plays each request once, keeps its limits and deadlines, and tells no answers."""

import json
import pickle
import socket
import threading
import time
from contextlib import ExitStack, closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import envgym
from envgym.core.turns import Ending
from envgym.errors import EnvFailure, InvalidInput
from envgym.serving import wire
from envgym.serving.pool import pool_of
from envgym.serving.remote_env import remote_id
from envgym.serving.server import EnvServer
from envgym.serving.sessions import SessionLimits
from envgym.serving.templates import ClientRights
from envgym.serving.wire import SessionLost
from tests.support.env_server import (
    BREAKABLE,
    COUNTER,
    SECRET,
    SESSION,
    SLOW_COUNTER,
    WAIT_S,
    Counter,
    a_neighbour,
    ask,
    connect,
    make,
    message_of,
    opening,
    running_server,
    wait_until,
)

# ---- what tells answers ----------------------------------------------------------------------------------------------


def test_no_reply_but_the_oracles_holds_an_answer(server: EnvServer) -> None:
    replies: list[tuple[int, Any]] = []
    known = {**wire.versions(), "time": time.time(), "env": COUNTER, "settings": {}}
    replies.append(ask(server, wire.DESCRIBE, known))
    replies.append(ask(server, wire.TASKS, {**known, "split": "train", "start": 0, "count": 3}))
    replies.append(ask(server, wire.OPEN, opening(server)))
    replies.append(ask(server, wire.STEP, {"session": SESSION, "number": 1, "action": "go"}))
    replies.append(ask(server, wire.RESET, {"session": SESSION, "number": 2, "options": {"split": "test", "index": 1}}))
    assert [status for status, _ in replies] == [200] * 5
    assert SECRET not in json.dumps(replies)
    assert SECRET in json.dumps(ask(server, wire.ORACLE, {"session": SESSION, "number": 3}))


def test_a_server_without_oracles_tells_nobody() -> None:
    with running_server(COUNTER, has_oracle=False) as server, closing(make(server)) as env:
        env.reset(seed=0)
        with pytest.raises(InvalidInput, match=r"oracle must be allowed by the server, got --no-oracle"):
            env.oracle()


def test_a_constructor_that_raises_anything_is_answered() -> None:
    with running_server(BREAKABLE, rights=ClientRights(["is_broken"])) as server:
        data = {**opening(server, BREAKABLE), "settings": {"is_broken": True}}
        status, reply = ask(server, wire.OPEN, data)
    assert (status, reply["error"]["type"]) == (HTTPStatus.INTERNAL_SERVER_ERROR, "EnvFailure")
    assert message_of(reply) == "ZeroDivisionError: the constructor is broken"


# ---- every request once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", [COUNTER, SLOW_COUNTER])
def test_a_request_that_is_sent_again_is_not_played_again(server: EnvServer, env_id: str) -> None:
    first = ask(server, wire.OPEN, opening(server, env_id))
    assert ask(server, wire.OPEN, opening(server, env_id)) == first
    step = {"session": SESSION, "number": 1, "action": "go"}
    assert [ask(server, wire.STEP, step)[1]["observation"] for _ in range(3)] == ["turn 1"] * 3
    assert ask(server, wire.STEP, {**step, "number": 2})[1]["observation"] == "turn 2"
    status, reply = ask(server, wire.STEP, {**step, "number": 1})
    assert status == HTTPStatus.BAD_REQUEST
    assert "request number must be 3, after the reply to 2, got 1" in message_of(reply)
    fork = {"session": SESSION, "to": SESSION[::-1]}
    assert [ask(server, wire.FORK, fork) for _ in range(2)] == [(200, {})] * 2
    assert len(server.sessions) == 2
    assert ask(server, wire.STEP, {"session": SESSION[::-1], "number": 1, "action": "go"})[1]["observation"] == "turn 3"


def test_a_connection_that_drops_in_mid_step_loses_nothing(server: EnvServer) -> None:
    ask(server, wire.OPEN, opening(server, SLOW_COUNTER))
    step = {"session": SESSION, "number": 1, "action": "wait 0.3"}
    with a_neighbour(server), closing(connect(server)) as connection:
        connection.request("POST", wire.STEP, body=json.dumps(step).encode())
        wait_until(lambda: any(session.is_called for session in server.sessions))
        connection.close()
        assert ask(server, wire.STEP, step)[1]["observation"] == "turn 1"
        assert ask(server, wire.STEP, {**step, "number": 2, "action": "go"})[1]["observation"] == "turn 2"


class DroppingProxy:
    """Passes requests on, and drops the connection instead of every second reply."""

    def __init__(self, port: int) -> None:
        self._to, self._listener = port, socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_dropped = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        number = 0
        with self._listener:
            while True:
                try:
                    client, _ = self._listener.accept()
                except OSError:
                    return
                with client, socket.create_connection(("127.0.0.1", self._to)) as server:
                    while data := client.recv(1 << 20):
                        server.sendall(data)
                        reply = server.recv(1 << 20)
                        number += 1
                        if number % 2 == 0:
                            self.num_dropped += 1
                            break
                        client.sendall(reply)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)


def test_an_episode_is_the_same_through_a_line_that_drops_every_second_reply(server: EnvServer) -> None:
    with closing(DroppingProxy(int(server.http.url.rpartition(":")[2]))) as proxy:
        with closing(envgym.make(f"{proxy.url}/{COUNTER}")) as env:
            env.reset(seed=0)
            assert [env.step("go").observation for _ in range(6)] == [f"turn {n}" for n in range(1, 7)]
        assert proxy.num_dropped >= 6


# ---- limits and deadlines --------------------------------------------------------------------------------------------


def test_a_full_server_says_when_to_come_again_and_the_client_waits() -> None:
    with running_server(COUNTER, limits=SessionLimits(sessions=2)) as server, ExitStack() as stack:
        envs = [stack.enter_context(closing(make(server))) for _ in range(3)]
        for env in envs[:2]:
            env.reset(seed=0)
        with closing(connect(server)) as connection:
            connection.request("POST", wire.OPEN, body=json.dumps(opening(server)).encode())
            response = connection.getresponse()
            assert (response.status, response.getheader("Retry-After")) == (HTTPStatus.SERVICE_UNAVAILABLE, "1")
            assert "server must have one of its 2 sessions free, got none" in message_of(json.loads(response.read()))
        waiting = threading.Thread(target=envs[2].reset, kwargs={"seed": 0})
        waiting.start()
        wait_until(lambda: server.metrics.busy >= 2)
        envs[0].close()
        waiting.join(WAIT_S)
        assert not waiting.is_alive()
        assert envs[2].step("go").observation == "turn 1"


def test_a_session_ends_with_its_client_and_one_that_is_renewed_does_not() -> None:
    with running_server(COUNTER, limits=SessionLimits(lease_s=0.6)) as server, closing(make(server)) as env:
        env.reset(seed=0)  # this client renews
        ask(server, wire.OPEN, opening(server))  # this one is gone
        assert len(server.sessions) == 2
        wait_until(lambda: server.metrics.ended["client gone"] == 1)
        assert len(Counter.open_envs) == 1
        time.sleep(0.8)  # longer than the lease
        assert env.step("go").observation == "turn 1"


def test_a_session_that_is_kept_for_a_pickle_ends_sooner() -> None:
    limits = SessionLimits(sessions=2, idle_s=60.0, kept_s=0.2)
    with running_server(COUNTER, limits=limits) as server, closing(make(server)) as env:
        env.reset(seed=0)
        pickle.dumps(env)
        assert len(server.sessions) == 2
        wait_until(lambda: server.metrics.ended["not taken"] == 1)
        assert env.step("go").observation == "turn 1"


def test_a_session_that_is_not_called_ends_and_its_env_says_so() -> None:
    with running_server(COUNTER, limits=SessionLimits(idle_s=0.2)) as server, closing(make(server)) as env:
        env.reset(seed=0)
        wait_until(lambda: server.metrics.ended["idle"] == 1)
        record = env.step("go").info["envgym"]
        assert record.ending is Ending.ERROR_ENV
        assert "session must be on this server, got none of that id" in record.error
        with closing(envgym.make(COUNTER)) as local:
            assert env.reset(seed=0).observation == local.reset(seed=0).observation


def test_a_call_that_takes_too_long_is_an_invalid_turn_and_stops_nobody() -> None:
    limits = SessionLimits(call_s=0.3)
    with running_server(SLOW_COUNTER, COUNTER, limits=limits) as server, closing(make(server, SLOW_COUNTER)) as env:
        with a_neighbour(server):
            env.reset(seed=0)
            record = env.step("wait 1").info["envgym"]
        assert record.ending is Ending.ERROR_ENV
        assert "call of the env must take at most 0.3 s" in record.error
        assert env.reset(seed=0).observation


def test_an_env_that_turns_out_slow_gets_threads(server: EnvServer) -> None:
    with closing(make(server)) as env, a_neighbour(server):
        env.reset(seed=0)
        for _ in range(3):
            env.step("wait 0.15")
        assert server.templates.get(COUNTER, {}).needs_thread
        assert env.step("go").observation == "turn 4"


# ---- both sides differ -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"protocol": 0}, r"protocol of envgym must be 2 as on the server, got 0 of the client"),
        ({"version": "0.0.1"}, r"version of envgym must be .* as on the server, got 0.0.1 of the client"),
        ({"time": 0.0}, r"clock of the server must agree with the client's within 300 s"),
        ({"time": float("nan")}, r"clock of the server must agree"),
        ({"env": "math/other-v0"}, r"environment of this server must be a known name, got 'math/other-v0'"),
    ],
)
def test_what_differs_is_said_in_one_sentence(server: EnvServer, changed: dict[str, Any], told: str) -> None:
    known = {**wire.versions(), "time": time.time(), "env": COUNTER, "settings": {}}
    _, reply = ask(server, wire.DESCRIBE, {**known, **changed})
    with pytest.raises(InvalidInput, match=told):
        raise wire.error_of(reply) or AssertionError(reply)


def test_an_address_without_a_server_is_bad_input() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(InvalidInput, match=rf"environment server must answer, got .*Connection refused .*{port}"):
        envgym.make(f"http://127.0.0.1:{port}/{COUNTER}")
    for address in ("http://nowhere/x", "http://a:x/x", "https://a:1/x"):
        with pytest.raises(InvalidInput, match=r"environment server must have an address with a port"):
            envgym.make(address)


def test_another_kind_of_server_is_bad_input() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises(InvalidInput, match=r"address must be that of an environment server of envgym"):
            envgym.make(f"http://127.0.0.1:{other.server_address[1]}/{COUNTER}")
        other.shutdown()


def test_a_port_in_use_is_bad_input(server: EnvServer) -> None:
    port = int(server.http.url.rpartition(":")[2])
    told = rf"address must be free to listen on, got 127.0.0.1 port {port}"
    with pytest.raises(InvalidInput, match=told), running_server(COUNTER, port=port):
        pass


def test_a_server_for_others_needs_a_token() -> None:
    import asyncio

    from envgym.serving.templates import Templates

    with pytest.raises(InvalidInput, match=r"server must have a token where others reach it"):
        asyncio.run(EnvServer(Templates([COUNTER], {})).listen("0.0.0.0", 0))


def test_a_server_that_is_started_again_has_lost_the_session() -> None:
    with running_server(COUNTER) as server:
        port = int(server.http.url.rpartition(":")[2])
        env = make(server)
        env.reset(seed=0)
    pool_of((server.http.url,)).clients[0].reconnect_s = 0.0
    with pytest.raises(EnvFailure, match=r"environment server must answer"):
        env.fork()
    with running_server(COUNTER, port=port):
        assert "got none of that id" in env.step("go").info["envgym"].error
        assert env.reset(seed=0).observation
        env.close()


def test_an_env_whose_server_is_gone_begins_again_on_another() -> None:
    with running_server(COUNTER) as stays:
        with running_server(COUNTER) as goes:
            env = envgym.make(remote_id((goes.http.url, stays.http.url), COUNTER))
            first = env.reset(seed=0).observation
            assert len(goes.sessions) == 1
        for client in pool_of((goes.http.url, stays.http.url)).clients:
            client.reconnect_s = 0.0
        with closing(env):
            assert env.reset(seed=0).observation == first
            assert len(stays.sessions) == 1


def test_a_call_without_reply_loses_the_session_and_says_so() -> None:
    with running_server(COUNTER) as server, closing(make(server)) as env:
        env.reset(seed=0)
        client = pool_of((server.http.url,)).clients[0]
        place, client._place = client._place, ("127.0.0.1", 1)
        client.reconnect_s = 0.0
        while client._idle:
            client._idle.pop().close()
        assert "environment server must answer" in env.step("go").info["envgym"].error
        client._place = place
        with pytest.raises(SessionLost, match=r"session must have a reply to each call, got none to the last"):
            env.oracle()
        assert env.reset(seed=0).observation
        assert env.step("go").observation == "turn 1"


# ---- what is counted -------------------------------------------------------------------------------------------------


def test_metrics_and_health_add_up(server: EnvServer) -> None:
    with closing(make(server)) as env:
        env.reset(seed=0)
        env.step("go")
        with closing(env.fork()), closing(connect(server)) as connection:
            connection.request("GET", wire.HEALTH)
            health = json.loads(connection.getresponse().read())
            connection.request("GET", wire.METRICS)
            lines = connection.getresponse().read().decode().splitlines()
    assert health["sessions"] == 2
    assert health["envs"] == [COUNTER, SLOW_COUNTER]
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values["envgym_sessions"] == "2"
    assert values['envgym_requests_total{path="/v1/step",status="200"}'] == "1"
    assert values["envgym_sessions_opened_total"] == values["envgym_sessions_forked_total"] == "1"
    assert values["envgym_call_seconds_count"] == values['envgym_call_seconds_bucket{le="+Inf"}'] == "1"


def test_all_envs_are_closed_with_the_server() -> None:
    with running_server(COUNTER, SLOW_COUNTER) as server:
        for env_id in (COUNTER, SLOW_COUNTER):
            make(server, env_id).reset(seed=0)
        assert len(Counter.open_envs) == 2
    assert Counter.open_envs == set()
