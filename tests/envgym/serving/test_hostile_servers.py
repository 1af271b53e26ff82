"""Whatever a server sends, the client gets a typed error within bounds, and the episode is invalid."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

import envgym
from envgym.core.turns import Ending, Invalid
from envgym.errors import EnvFailure, EnvgymError, InvalidInput
from envgym.serving import wire
from envgym.serving.client import _close_connections
from envgym.serving.pool import _pool
from envgym.serving.wire import ServerUnreachable

DESCRIPTION: dict[str, Any] = {
    **wire.versions(),
    "env": "math/x-v0",
    "fork_capability": "state",
    "system_prompt": "",
    "chance_score": 0.0,
    "optimum": None,
    "reward_range": [0.0, 1.0],
    "unchecked": {},
    "max_turns": None,
    "tools": [],
    "sizes": {"train": 1, "test": 1},
    "digest": "x",
    "call_s": 5.0,
    "lease_s": 60.0,
}
TASK = {"id": "a", "prompt": "p", "payload": {}, "split": "train", "metadata": {}, "hidden": {"key": "k", "index": 0}}
BEGINNING: dict[str, Any] = {"task": TASK, "observation": "first", "plain": None, "tools": None, "facts": {}}
TURN: dict[str, Any] = {
    "turn": 0,
    "observation": "next",
    "reward": {"value": 1.0},
    "ending": None,
    "tool_calls": 0,
    "tool_errors": 0,
    "error": None,
}
GOOD = {
    wire.DESCRIBE: DESCRIPTION,
    wire.OPEN: BEGINNING,
    wire.STEP: TURN,
    wire.TASKS: {"tasks": [TASK]},
    wire.ORACLE: {"action": "go"},
    wire.FORK: {},
    wire.CLOSE: {},
    wire.RENEW: {},
}


def framed(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status.encode(), len(body)) + body


@contextmanager
def answering(replies: Mapping[str, object]) -> Iterator[str]:
    """Answer each path with a value as JSON, or with bytes as they are."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=converse, args=(client,), daemon=True).start()

    def converse(client: socket.socket) -> None:
        with suppress(OSError), client, client.makefile("rb") as lines:  # the other end may hang up
            while head := lines.readline():
                path = head.split()[1].decode()
                length = 0
                while (line := lines.readline()).strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                lines.read(length)
                value = replies.get(path, {})
                client.sendall(value if isinstance(value, bytes) else framed(json.dumps(value).encode()))

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/math/x-v0"
    finally:
        listener.close()
        _close_connections()
        _pool.cache_clear()


def test_a_good_server_is_taken() -> None:
    with answering(GOOD) as env_id, closing(envgym.make(env_id)) as env:
        assert env.reset(seed=0).observation == "first"
        assert env.oracle() == "go"
        assert env.step("go").reward == 1.0


@pytest.mark.parametrize("name", [*DESCRIPTION, "every field"])
def test_a_description_that_leaves_a_field_out_is_refused(name: str) -> None:
    described = {} if name == "every field" else {key: value for key, value in DESCRIPTION.items() if key != name}
    if name in ("protocol", "version", "env"):
        pytest.skip("no field that a client reads")
    with answering({**GOOD, wire.DESCRIBE: described}) as env_id, pytest.raises(InvalidInput, match=r"have the field"):
        envgym.make(env_id)


@pytest.mark.parametrize(
    "changed",
    [
        {"system_prompt": 1},
        {"tools": [1]},
        {"tools": [{"name": 1, "description": "", "parameters": {}}]},
        {"reward_range": [0]},
        {"reward_range": ["0", "1"]},
        {"sizes": {"train": "x"}},
        {"call_s": "x"},
        {"call_s": 1e308},
        {"lease_s": 0},
        {"fork_capability": "moon"},
        {"chance_score": None},
        {"chance_score": float("nan")},
        {"unchecked": {"a": 1}},
    ],
)
def test_a_description_of_other_types_is_refused(changed: dict[str, object]) -> None:
    with answering({**GOOD, wire.DESCRIBE: {**DESCRIPTION, **changed}}) as env_id, pytest.raises(InvalidInput):
        envgym.make(env_id)


WRONG_BEGINNINGS: list[dict[str, object]] = [
    *({key: value for key, value in BEGINNING.items() if key != name} for name in BEGINNING),
    {**BEGINNING, "task": None},
    {**BEGINNING, "task": {"id": "a"}},
    {**BEGINNING, "task": {**TASK, "split": "moon"}},
    {**BEGINNING, "observation": None},
    {**BEGINNING, "observation": {"text": "x"}},
    {**BEGINNING, "observation": {"text": "x", "messages": [{"role": "moon", "content": "x"}]}},
    {**BEGINNING, "observation": {"text": "x", "messages": [{"role": "user", "content": [1]}]}},
    {**BEGINNING, "tools": [{}]},
    {**BEGINNING, "facts": {"max_turns": "x"}},
]


@pytest.mark.parametrize("reply", WRONG_BEGINNINGS)
def test_a_reset_that_is_none_is_a_failure_of_the_env(reply: dict[str, object]) -> None:
    with (
        answering({**GOOD, wire.OPEN: reply}) as env_id,
        closing(envgym.make(env_id)) as env,
        pytest.raises(EnvFailure, match=r"reply must have the form of envgym's"),
    ):
        env.reset(seed=0)


WRONG_TURNS: list[dict[str, object]] = [
    *({key: value for key, value in TURN.items() if key != name} for name in TURN),
    {**TURN, "reward": 1.0},
    {**TURN, "reward": {}},
    {**TURN, "reward": {"value": "1"}},
    {**TURN, "reward": {"value": True}},
    {**TURN, "reward": {"value": float("inf")}},
    {**TURN, "reward": {"value": float("nan")}},
    {**TURN, "reward": {"value": 10**400}},
    {**TURN, "reward": {"value": 1.0, "components": {"a": "x"}}},
    {**TURN, "reward": {"value": 1.0, "components": [1]}},
    {**TURN, "reward": {"cause": "moon", "reason": ""}},
    {**TURN, "reward": {"cause": "TERMINATED", "reason": ""}},
    {**TURN, "ending": "moon"},
    {**TURN, "turn": "x"},
    {**TURN, "error": 1},
]


@pytest.mark.parametrize("reply", WRONG_TURNS)
def test_a_turn_that_is_none_makes_the_episode_invalid(reply: dict[str, object]) -> None:
    with answering({**GOOD, wire.STEP: reply}) as env_id, closing(envgym.make(env_id)) as env:
        env.reset(seed=0)
        record = env.step("go").info["envgym"]
    assert isinstance(record.reward, Invalid)
    assert record.ending is Ending.ERROR_ENV


BAD_BYTES = [
    b"",
    b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999999\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 17),
    framed(b"[]"),
    framed(b"{"),
    framed(b'{"a":' * 100_000),
    framed(b"[" * 100_000),
    framed(b'{"error": {"type": "MissingExtra", "message": 1}}', "500 X"),
    framed(b'{"error": 1}', "500 X"),
    framed(b'{"error": {"type": ["x"], "message": {"a": 1}}}', "500 X"),
    framed(b"9" * 5000),
]


@pytest.mark.parametrize("sent", BAD_BYTES, ids=range(len(BAD_BYTES)))
def test_bytes_that_are_no_reply_make_the_episode_invalid(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.serving.client.RECONNECT_S", 0.0)
    with answering({**GOOD, wire.STEP: sent}) as env_id, closing(envgym.make(env_id)) as env:
        env.reset(seed=0)
        client = env._session.client  # type: ignore[attr-defined]  # the env is a remote one
        client.reconnect_s, client.call_s = 0.0, -9.0
        record = env.step("go").info["envgym"]
    assert isinstance(record.reward, Invalid)


def test_a_reply_of_gigabytes_is_not_read() -> None:
    with (
        answering({**GOOD, wire.DESCRIBE: b"HTTP/1.1 200 OK\r\nContent-Length: 8589934592\r\n\r\n"}) as env_id,
        pytest.raises(InvalidInput, match=r"the reply has 8589934592 bytes, more than 16777216"),
    ):
        envgym.make(env_id)


def test_an_error_of_any_name_is_an_error_of_ours() -> None:
    def classes(root: type[EnvgymError]) -> set[type[EnvgymError]]:
        return {root}.union(*(classes(child) for child in root.__subclasses__()))

    for kind in classes(EnvgymError):
        error = wire.error_of({"error": {"type": kind.__name__, "message": "x" * 100_000}})
        assert isinstance(error, EnvgymError)
        assert len(str(error)) <= 10_000
    assert type(wire.error_of({"error": {"type": "ServerUnreachable", "message": "x"}})) is ServerUnreachable


@pytest.mark.parametrize("tasks", [None, [], [1], [{}], [{**TASK, "id": 1}], "x"])
def test_a_page_of_tasks_that_is_none_is_a_failure_of_the_env(tasks: object) -> None:
    from envgym.core.tasks import Split

    with (
        answering({**GOOD, wire.TASKS: {"tasks": tasks}}) as env_id,
        closing(envgym.make(env_id)) as env,
        pytest.raises(EnvFailure, match=r"reply must have the form of envgym's"),
    ):
        env.unwrapped.tasks.task(Split.TRAIN, 0)
