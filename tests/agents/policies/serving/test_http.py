"""The HTTP server and client on asyncio."""

import asyncio
import errno
import json
import socket
import time

import pytest

from envgym.agents.policies.serving.http import (
    AsyncHttpServer,
    ConnectionFailed,
    HttpConnections,
    HttpRequest,
    ServerLimits,
    ServerReply,
)
from envgym.errors import InvalidInput
from tests.agents.policies.serving.running import http_thread


async def echo(request: HttpRequest) -> ServerReply:
    return ServerReply.of({"path": request.path, "query": request.query, "size": len(request.body)})


def ask(url: str, *, token: str | None = None, body: str | None = None, count: int = 1) -> list[tuple[int, bytes]]:
    async def work() -> list[tuple[int, bytes]]:
        connections = HttpConnections(url, token=token)
        sent = None if body is None else {"body": body}
        try:
            return [await connections.ask("POST", "/a?b=c", sent, timeout_s=60) for _ in range(count)]
        finally:
            await connections.close()

    return asyncio.run(work())


def raw(url: str, data: bytes) -> bytes:
    """Return all that is answered until the server closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_requests_share_a_connection() -> None:
    with http_thread(lambda: AsyncHttpServer(echo)) as server:
        answers = ask(server.url, body="x" * 100_000, count=3)
    size = len(json.dumps({"body": "x" * 100_000}, separators=(",", ":")))
    assert [(status, json.loads(content)) for status, content in answers] == [
        (200, {"path": "/a", "query": "b=c", "size": size})
    ] * 3


def test_requests_that_follow_each_other_at_once_are_answered_in_order() -> None:
    one, last = b"GET /1 HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"GET /2 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with http_thread(lambda: AsyncHttpServer(echo)) as server:
        answer = raw(server.url, one + b"\r\n" + last + b"Connection: close\r\n\r\n")
    assert answer.index(b'"/1"') < answer.index(b'"/2"')


@pytest.mark.parametrize(
    "head, status, reason",
    [
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"403", b"Host must name this machine"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://a\r\n\r\n", b"403", b"Origin must be this server"),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, b"413", b"at most 1000"),
        (b"nonsense\r\n\r\n", b"400", b"illegal request line"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nA: " + b"x" * 100_000, b"431", b"too long"),
    ],
)
def test_what_is_not_allowed_is_refused_in_a_sentence(head: bytes, status: bytes, reason: bytes) -> None:
    with http_thread(lambda: AsyncHttpServer(echo, limits=ServerLimits(body_bytes=1000))) as server:
        answer = raw(server.url, head)
    assert answer.split()[1] == status
    assert reason in answer


def test_a_wrong_token_is_refused_and_the_right_one_is_not() -> None:
    with http_thread(lambda: AsyncHttpServer(echo, token="right")) as server:
        statuses = [ask(server.url, token=token)[0][0] for token in (None, "wrong", "right")]
    assert statuses == [401, 401, 200]


def test_a_server_that_others_reach_needs_a_token() -> None:
    with pytest.raises(InvalidInput, match="server must have a token where others reach it"):
        asyncio.run(AsyncHttpServer(echo).start("0.0.0.0", 0))


def test_a_half_open_connection_ends() -> None:
    with http_thread(lambda: AsyncHttpServer(echo, limits=ServerLimits(request_s=0.1))) as server:
        began = time.monotonic()
        assert raw(server.url, b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nabc") == b""
        assert 0.05 < time.monotonic() - began < 20


def test_what_a_client_that_left_has_asked_for_is_cancelled() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: HttpRequest) -> ServerReply:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        raise AssertionError

    async def work() -> None:
        server = AsyncHttpServer(wait)
        await server.start("127.0.0.1", 0)
        connections = HttpConnections(server.url)
        asking = asyncio.create_task(connections.ask("GET", "/", timeout_s=30))
        await began.wait()
        asking.cancel()
        await asyncio.wait_for(ended.wait(), 10)
        await server.close()

    asyncio.run(work())


def test_more_connections_than_allowed_are_turned_away() -> None:
    with http_thread(lambda: AsyncHttpServer(echo, limits=ServerLimits(connections=1))) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as first:
            first.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200" in first.recv(100)
            assert b"503" in raw(server.url, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


def test_an_unexpected_error_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: HttpRequest) -> ServerReply:
        raise KeyError("version")

    with http_thread(lambda: AsyncHttpServer(fail)) as server:
        (status, content), again = ask(server.url, count=2)
    assert (status, again[0]) == (500, 500)
    message = "the server failed to answer, by KeyError: 'version'; its log says where."
    assert json.loads(content) == {"error": {"message": message, "code": 500}}
    assert caplog.messages == ["POST /a?b=c failed"] * 2


def test_a_network_that_is_gone_is_a_failed_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = asyncio.StreamReader.read

    async def read(reader: asyncio.StreamReader, size: int = -1) -> bytes:
        await sound(reader, size)
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    with http_thread(lambda: AsyncHttpServer(echo)) as server:
        monkeypatch.setattr(asyncio.StreamReader, "read", read)
        with pytest.raises(ConnectionFailed, match="No route to host"):
            ask(server.url)


def test_a_server_that_is_not_there_or_does_not_answer_is_told() -> None:
    async def never(request: HttpRequest) -> ServerReply:
        await asyncio.sleep(60)
        raise AssertionError

    with pytest.raises(ConnectionFailed):
        ask("http://127.0.0.1:9")

    async def impatient(url: str) -> None:
        await HttpConnections(url).ask("GET", "/", timeout_s=0.05)

    with http_thread(lambda: AsyncHttpServer(never)) as server, pytest.raises(TimeoutError):
        asyncio.run(impatient(server.url))
