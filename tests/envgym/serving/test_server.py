"""A server that clients cannot harm, and that cannot harm them."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import envgym
from envgym.core.turns import Ending
from envgym.env import Env
from envgym.errors import EnvFailure, InvalidInput
from envgym.serving import wire
from envgym.serving.client import pool_of
from envgym.serving.http import HttpLimits
from envgym.serving.server import EnvServer
from envgym.serving.sessions import SessionLimits
from tests.support.env_server import COUNTER, SECRET, SLOW_COUNTER, Counter, running_server

WAIT_S = 20.0
SESSION = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def server() -> Iterator[EnvServer]:
    with running_server(COUNTER, SLOW_COUNTER) as server:
        yield server


def make(server: EnvServer, env_id: str = COUNTER, **settings: object) -> Env[None]:
    return envgym.make(f"{server.http.url}/{env_id}", **settings)


def connect(server: EnvServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", int(server.http.url.rpartition(":")[2]), timeout=WAIT_S)


def ask(server: EnvServer, path: str, data: object, **headers: str) -> tuple[int, Any]:
    with closing(connect(server)) as connection:
        connection.request("POST", path, body=json.dumps(data).encode(), headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def message_of(reply: Any) -> str:
    return str(reply["error"]["message"])


def opening(server: EnvServer, env_id: str = COUNTER) -> dict[str, Any]:
    digest = server.templates.get(env_id, {}).description["digest"]
    return {"session": SESSION, "number": 0, "env": env_id, "settings": {}, "digest": digest, "seed": 0}


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


@contextmanager
def a_neighbour(server: EnvServer) -> Iterator[None]:
    """Hold a session meanwhile, which must go on as if nothing had been."""
    with closing(make(server)) as env:
        env.reset(seed=0)
        assert env.step("go").observation == "turn 1"
        yield
        assert env.step("go").observation == "turn 2"


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


# ---- hostile and broken clients --------------------------------------------------------------------------------------


def test_a_wrong_token_is_told_so() -> None:
    with running_server(COUNTER, token="right") as server:
        for headers, got in (({}, "none"), ({"Authorization": "Bearer wrong"}, "another")):
            status, reply = ask(server, wire.CLOSE, {"session": SESSION}, **headers)
            assert status == HTTPStatus.UNAUTHORIZED
            assert f"token must be the server's, got {got}" in message_of(reply)
        with pytest.raises(InvalidInput, match=r"token must be the server's, got none"):
            make(server)


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wire.TOKEN_VARIABLE, "right")
    with running_server(COUNTER, token="right") as server, a_neighbour(server):
        pass


def test_pages_of_other_sites_are_refused(server: EnvServer) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        assert ask(server, wire.RENEW, {}, **headers)[0] == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    "sent, status, told",
    [
        (
            b"POST /v1/step HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n",
            413,
            "body must have at most",
        ),
        (b"POST /v1/step HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "Content-Length must say how long"),
        (b"POST /v1/step HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400, "Content-Length must say"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "Content-Length must say"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400, "each once"),
        (b"PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "request must be a GET or POST"),
        (b"\x16\x03\x01\x02 not HTTP at all\r\n\r\n", 400, "request must be a GET or POST"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, 431, "request header must have at most"),
        (
            b"POST /v1/step HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nnull",
            400,
            "message must be a JSON object",
        ),
        (b"POST /v1/step HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n{]}", 400, "message must be JSON"),
        (b"POST /v1/stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 404, "path must be one of"),
        (b"GET /etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "path must be one of /health, /metrics"),
    ],
)
def test_what_is_no_request_is_refused_in_one_sentence(server: EnvServer, sent: bytes, status: int, told: str) -> None:
    port = int(server.http.url.rpartition(":")[2])
    with a_neighbour(server), socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        client.sendall(sent)
        head, _, body = client.recv(1 << 16).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert told in message_of(json.loads(body))


@pytest.mark.parametrize("path", [wire.DESCRIBE, wire.TASKS, wire.OPEN, wire.RESET, wire.STEP, wire.ORACLE, wire.FORK])
@pytest.mark.parametrize("value", [None, 1, "x", [], {}, -1, [[]], {"a": 1}, "x" * 5000, 10**40])
def test_a_request_of_nonsense_is_an_error_with_a_type(server: EnvServer, path: str, value: object) -> None:
    names = (
        "session",
        "number",
        "env",
        "settings",
        "digest",
        "seed",
        "options",
        "action",
        "to",
        "split",
        "start",
        "count",
    )
    with a_neighbour(server):
        status, reply = ask(server, path, {**dict.fromkeys(names, value), **wire.versions(), "env": COUNTER})
        assert status in (400, 404, 410) or (path, value) == (wire.DESCRIBE, {})
        assert (wire.error_of(reply) is None) == (status == HTTPStatus.OK)


def test_nonsense_inside_a_session_leaves_the_session_whole(server: EnvServer) -> None:
    ask(server, wire.OPEN, opening(server))
    nonsense: list[tuple[str, dict[str, object]]] = [
        (wire.STEP, {"action": None}),
        (wire.STEP, {"action": {"text": 1}}),
        (wire.STEP, {"action": {"text": "x", "tool_calls": [1]}}),
        (wire.RESET, {"seed": "x"}),
        (wire.RESET, {"seed": -1}),
        (wire.RESET, {"options": 3}),
        (wire.RESET, {"options": {"task": {"hidden": {"key": 1}}}}),
        (wire.RESET, {"options": {"task": {"split": "moon"}}}),
    ]
    for number, (path, data) in enumerate(nonsense, start=1):
        status, _ = ask(server, path, {"session": SESSION, "number": number, **data})
        assert status in (400, 500), (path, data)
    assert ask(server, wire.RESET, {"session": SESSION, "number": 9, "seed": 1})[0] == HTTPStatus.OK
    assert ask(server, wire.STEP, {"session": SESSION, "number": 10, "action": "go"})[1]["observation"] == "turn 1"


def test_requests_that_come_at_once_are_answered_in_order(server: EnvServer) -> None:
    ask(server, wire.OPEN, opening(server, SLOW_COUNTER))
    body = [json.dumps({"session": SESSION, "number": n, "action": "go"}).encode() for n in (1, 2, 3)]
    head = f"POST {wire.STEP} HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    with closing(connect(server)) as connection:
        connection.connect()
        connection.sock.sendall(b"".join(f"{head}{len(part)}\r\n\r\n".encode() + part for part in body))
        data = b""
        while data.count(b"turn ") < 3:
            data += connection.sock.recv(1 << 16)
    assert [data.find(b"turn %d" % n) for n in (1, 2, 3)] == sorted(data.find(b"turn %d" % n) for n in (1, 2, 3))


def test_half_a_request_is_dropped_in_time() -> None:
    with running_server(COUNTER, http_limits=HttpLimits(request_s=0.2, idle_s=0.2)) as server, a_neighbour(server):
        port = int(server.http.url.rpartition(":")[2])
        for sent in (b"", b"POST /v1/st", b"POST /v1/step HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"):
            with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
                client.sendall(sent)
                assert client.recv(1) == b""


def test_one_connection_too_many_is_told_so() -> None:
    with running_server(COUNTER, http_limits=HttpLimits(connections=1)) as server:
        port = int(server.http.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)), closing(connect(server)) as connection:
            wait_until(lambda: len(server.http.connections) == 1)
            connection.request("GET", wire.HEALTH)
            assert connection.getresponse().status == HTTPStatus.SERVICE_UNAVAILABLE


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
        ({"protocol": 0}, r"protocol of envgym must be 1 as on the server, got 0 of the client"),
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
