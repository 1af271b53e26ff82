"""Whatever a client sends, it gets one sentence, and nobody else notices."""

import json
import socket
from contextlib import closing
from http import HTTPStatus

import pytest

from envgym.errors import InvalidInput
from envgym.runtime.http.server import HttpLimits
from envgym.serving import wire
from envgym.serving.server import EnvServer
from tests.support.env_server import (
    COUNTER,
    SESSION,
    SLOW_COUNTER,
    WAIT_S,
    a_neighbour,
    ask,
    connect,
    make,
    message_of,
    opening,
    running_server,
    wait_until,
)


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
def test_what_is_no_request_is_one_sentence(server: EnvServer, sent: bytes, status: int, told: str) -> None:
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


FIELDS: dict[str, tuple[object, ...]] = {
    "session": (1, 1.0, None, True, [SESSION], {}),
    "number": ("1", 1.0, None, True, [1], {}),
    "env": (1, [COUNTER], {}, None),
    "settings": ("x", 1, [], [["a", 1]]),
    "digest": (1, [], {}),
    "to": (1, [], {}),
    "keep": ("true", 1, []),
    "sessions": ("x", 1, {}, [1], [[SESSION]]),
    "split": (1, [], {}, ["train"]),
    "start": ("0", 0.0, True, [], -1, 10**30),
    "count": ("1", 1.0, True, [], 0),
    "seed": ("1", 1.0, True, [], -1, 10**100),
    "options": ("x", 1, [], {"split": ["train"]}, {"index": "1"}, {"index": 1.0}, {"index": 10**30}, {"task": "x"}),
    "action": (1, 1.0, None, [], {}, {"text": 1}, ["go"]),
    "ids": (1, [], {}),
    "time": ("now", [], {}),
}
"""Field -> values that no client of envgym sends."""
TEXTS: dict[str, object] = dict.fromkeys(("text", "content", "thinking"), "x")
ACTIONS: tuple[dict[str, object], ...] = (
    {**TEXTS, "tool_calls": [1], "malformed": []},
    {**TEXTS, "tool_calls": {}, "malformed": []},
    {**TEXTS, "tool_calls": [{"name": 1, "arguments": {}, "id": None}], "malformed": []},
    {**TEXTS, "tool_calls": [{"name": "x", "arguments": [], "id": None}], "malformed": []},
    {**TEXTS, "tool_calls": [], "malformed": [1]},
    {**TEXTS, "tool_calls": [], "malformed": [], "content": 1},
)
TASKS: tuple[dict[str, object], ...] = (
    {"id": 1},
    {"id": [], "prompt": "", "payload": {}, "split": "train", "metadata": {}},
    {"id": "", "prompt": 1, "payload": {}, "split": "train", "metadata": {}},
    {"id": "", "prompt": "", "payload": [], "split": "train", "metadata": {}},
    {"id": "", "prompt": "", "payload": {}, "split": "moon", "metadata": {}},
    {"id": "", "prompt": "", "payload": {}, "split": "train", "metadata": {}, "hidden": []},
    {"id": "", "prompt": "", "payload": {}, "split": "train", "metadata": {}, "hidden": {"key": 1, "index": None}},
    {"id": "", "prompt": "", "payload": {}, "split": "train", "metadata": {}, "hidden": {"key": "", "index": 10**30}},
    {"id": "", "prompt": "", "payload": {}, "split": "train", "metadata": {}, "other": 1},
)


@pytest.mark.parametrize("env_id", [COUNTER, SLOW_COUNTER])
def test_a_value_of_another_type_is_refused(server: EnvServer, env_id: str, caplog: pytest.LogCaptureFixture) -> None:
    base = {**opening(server, env_id), **wire.versions(), "action": "go", "to": SESSION[::-1], "split": "train"}
    base |= {"start": 0, "count": 1, "options": {}, "keep": False, "sessions": [], "time": 0.0}
    wrong = [(name, value) for name, values in FIELDS.items() for value in values]
    wrong += [("action", action) for action in ACTIONS] + [("options", {"task": task}) for task in TASKS]
    ask(server, wire.OPEN, opening(server, env_id))
    number = 0
    with a_neighbour(server):
        for name, value in wrong:
            for path in (
                wire.DESCRIBE,
                wire.TASKS,
                wire.OPEN,
                wire.RESET,
                wire.STEP,
                wire.FORK,
                wire.CLOSE,
                wire.RENEW,
            ):
                read = READ_BY.get(name)
                if (read is not None and path not in read) or (value in (-1, 0, 10**30) and path != wire.TASKS):
                    continue
                status, reply = ask(server, path, {**base, "number": number + 1, name: value})
                assert status == HTTPStatus.BAD_REQUEST, (path, name, value, reply)
                number += name in ("action", "seed", "options") and path in (wire.RESET, wire.STEP)
        step = {"session": SESSION, "number": number + 1, "action": "go"}
        assert ask(server, wire.STEP, step)[1]["observation"] == "turn 1"
    assert "Traceback" not in caplog.text


READ_BY = {"action": (wire.STEP,), "seed": (wire.RESET,), "options": (wire.RESET,)}
"""Field -> the routes that read it; of any other field every route checks the type."""


def test_a_message_that_is_nested_too_deep_is_refused(server: EnvServer, caplog: pytest.LogCaptureFixture) -> None:
    with a_neighbour(server), closing(connect(server)) as connection:
        for depth in (900, 2_000, 40_000):
            for name in ("settings", "options", "action"):
                nested = '{"a":' * depth + "1" + "}" * depth
                body = json.dumps(opening(server))[:-1] + f', "{name}": {nested}}}'
                for path in (wire.OPEN, wire.DESCRIBE, wire.TASKS):
                    connection.request("POST", path, body=body.encode())
                    response = connection.getresponse()
                    response.read()
                    assert response.status in (200, 400, 404), (depth, name, path)
    assert "Traceback" not in caplog.text


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
