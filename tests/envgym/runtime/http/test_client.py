"""The HTTP client: its reader of replies, over asyncio and over blocking sockets."""

import asyncio
import errno
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.runtime.http.client import ConnectionFailed, HttpAnswer, ReplyReader, get, read_whole
from envgym.runtime.http.connections import HttpConnections
from envgym.runtime.http.server import HttpReply, HttpRequest, HttpServer
from tests.support.http_server import http_thread


async def echo(request: HttpRequest) -> HttpReply:
    return HttpReply.of_json({"path": request.path, "query": request.query, "size": len(request.body)})


def ask(url: str, *, token: str | None = None, body: str | None = None, count: int = 1) -> list[tuple[int, bytes]]:
    async def work() -> list[tuple[int, bytes]]:
        connections = HttpConnections(url, token=token)
        sent = None if body is None else {"body": body}
        try:
            answers = [await connections.ask("POST", "/a?b=c", sent, timeout_s=60) for _ in range(count)]
            return [(answer.status, answer.body) for answer in answers]
        finally:
            await connections.close()

    return asyncio.run(work())


def test_requests_share_a_connection() -> None:
    with http_thread(HttpServer(echo)) as server:
        answers = ask(server.url, body="x" * 100_000, count=3)
    size = len(json.dumps({"body": "x" * 100_000}, separators=(",", ":")))
    assert [(status, json.loads(content)) for status, content in answers] == [
        (200, {"path": "/a", "query": "b=c", "size": size})
    ] * 3


def test_a_wrong_token_is_refused_and_the_right_one_is_not() -> None:
    with http_thread(HttpServer(echo, token="right")) as server:
        statuses = [ask(server.url, token=token)[0][0] for token in (None, "wrong", "right")]
    assert statuses == [401, 401, 200]


def test_a_network_that_is_gone_is_a_failed_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(connection: Any, data: bytes) -> None:
        connection.transport._fatal_error(OSError(errno.EHOSTUNREACH, "No route to host"))

    with http_thread(HttpServer(echo)) as server:
        monkeypatch.setattr("envgym.runtime.http.connections._OpenConnection.data_received", break_off)
        with pytest.raises(ConnectionFailed, match="No route to host"):
            ask(server.url)


def test_a_server_that_is_not_there_or_does_not_answer_is_told() -> None:
    async def never(request: HttpRequest) -> HttpReply:
        await asyncio.sleep(60)
        raise AssertionError

    with pytest.raises(ConnectionFailed):
        ask("http://127.0.0.1:9")

    async def impatient(url: str) -> None:
        await HttpConnections(url).ask("GET", "/", timeout_s=0.05)

    with http_thread(HttpServer(never)) as server, pytest.raises(TimeoutError):
        asyncio.run(impatient(server.url))


def test_each_request_has_its_own_time() -> None:
    async def slow(request: HttpRequest) -> HttpReply:
        await asyncio.sleep(float(request.query))
        return HttpReply.of_json({})

    async def work(url: str) -> list[Any]:
        connections = HttpConnections(url)
        times = [(0.01, 600.0), (600.0, 0.1), (0.3, 600.0), (600.0, 0.2)]
        asks = [connections.ask("GET", f"/?{needed}", timeout_s=allowed) for needed, allowed in times]
        answers = await asyncio.gather(*asks, return_exceptions=True)
        await connections.close()
        return [answer if isinstance(answer, BaseException) else answer.status for answer in answers]

    with http_thread(HttpServer(slow)) as server:
        answers = asyncio.run(work(server.url))
    assert [type(answer) for answer in answers] == [int, TimeoutError, int, TimeoutError]


def test_bytes_are_sent_as_they_are() -> None:
    def back(request: HttpRequest) -> HttpReply:
        return HttpReply(HTTPStatus.OK, request.body[::-1], request.headers["content-type"])

    async def work(url: str) -> HttpAnswer:
        connections = HttpConnections(url)
        try:
            return await connections.ask("POST", "/", bytes(range(256)), timeout_s=60)
        finally:
            await connections.close()

    with http_thread(HttpServer(back)) as server:
        answer = asyncio.run(work(server.url))
    assert answer.body == bytes(range(256))[::-1]
    assert answer.headers["content-type"] == "application/octet-stream"


LIMIT = 20
SOUND = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", HttpAnswer(200, {"content-length": "2"}, b"{}", False)),
    (b"HTTP/1.1 404 \r\nCONTENT-length:0\r\n\r\n", HttpAnswer(404, {"content-length": "0"}, b"", False)),
    (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\na",
        HttpAnswer(200, {"content-length": "1", "connection": "close"}, b"a", True),
    ),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: u\r\n\r\n",
        HttpAnswer(200, {"transfer-encoding": "chunked"}, b"abc0123456789", False),
    ),
    (b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", HttpAnswer(204, {"x": "y"}, b"", False)),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", HttpAnswer(200, {"content-length": "1"}, b"a", True)),
    (b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nuntil it ends", HttpAnswer(200, {"x": "y"}, b"until it ends", True)),
]


def read(*parts: bytes) -> HttpAnswer | None:
    """Read a reply from parts; the connection is closed after them."""
    reader = ReplyReader(LIMIT)
    answers = [answer for part in parts if part and (answer := reader.feed(part)) is not None]
    return answers[0] if answers else reader.feed(b"")


@pytest.mark.parametrize("sent, answer", SOUND, ids=range(len(SOUND)))
def test_a_reply_is_read_whole_and_byte_by_byte(sent: bytes, answer: HttpAnswer) -> None:
    assert read(sent) == answer
    assert read(*(bytes([byte]) for byte in sent)) == answer


@given(st.sampled_from(SOUND), st.lists(st.integers(0, 200), max_size=6))
def test_a_reply_is_the_same_however_it_is_cut(sound: tuple[bytes, HttpAnswer], cuts: list[int]) -> None:
    sent, answer = sound
    ends = sorted({min(cut, len(sent)) for cut in cuts} | {0, len(sent)})
    assert read(*(sent[start:end] for start, end in pairwise(ends))) == answer


@given(st.sampled_from(SOUND), st.integers(0, 300), st.binary(max_size=3))
def test_reply_at_once_is_the_same_or_left_to_reader(sound: tuple[bytes, HttpAnswer], end: int, more: bytes) -> None:
    sent, answer = sound
    assert read_whole(sent, LIMIT) in (answer, None)
    for part in (sent[: min(end, len(sent) - 1)], sent + b"x" + more):
        whole = read_whole(part, LIMIT)
        assert whole is None or whole == read(part), "a part, or a reply with more behind it, is no whole reply"
    assert read_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", LIMIT) is not None
    assert read_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", 1) is None


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent, reason",
    [
        (b"", "closed before the reply"),
        (b"HTTP/1.1 200", "closed in the middle"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", "closed in the middle"),
        (b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\n{}", "no HTTP"),
        (b"\x15\x03\x01 not HTTP\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}", "no known length: 'x'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}", "no known length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "no known length: 'gzip'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n", "21 bytes, more than 20"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 21, "21 bytes, more than 20"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", "longer than it says"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 17), "header of the reply has more than"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 17) + b"\r\n\r\n", "header of the reply has more than"),
        (CHUNKED + b"x\r\n", "chunk of no known length"),
        (CHUNKED + b"-1\r\n", "chunk of no known length"),
        (CHUNKED + b"ffffffffffffffffffff\r\n", "chunk of no known length"),
        (CHUNKED + b"15\r\n", "21 bytes, more than 20"),
        (CHUNKED + b"a\r\n" + b"x" * 10 + b"\r\nb\r\n", "21 bytes, more than 20"),
        (CHUNKED + b"1\r\nabc", "chunk that is longer than it says"),
        (CHUNKED + b"1\r\na\r\n0\r\n", "closed in the middle"),
    ],
)
def test_what_is_no_reply_is_a_failed_connection(sent: bytes, reason: str) -> None:
    with pytest.raises(ConnectionFailed, match=reason):
        read(sent)


@contextmanager
def replying(*replies: bytes | None) -> Iterator[str]:
    """Answer one request with each of the replies, and close the connection after it; None: at once, unanswered."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            for reply in replies:
                client, _ = listener.accept()
                with client:
                    client.recv(1 << 16)
                    client.sendall(reply or b"")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread.join(60)


KEPT = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"


def test_a_connection_that_was_kept_and_closed_meanwhile_is_replaced() -> None:
    with replying(KEPT + b"a", KEPT + b"b", None) as url:

        async def work() -> list[bytes]:
            connections = HttpConnections(url)
            first = await connections.ask("GET", "/", timeout_s=60)
            second = await connections.ask("GET", "/", timeout_s=60)
            with pytest.raises(ConnectionFailed, match="without an answer"):
                await connections.ask("GET", "/", timeout_s=60)
            await connections.close()
            return [first.body, second.body]

        assert asyncio.run(work()) == [b"a", b"b"]


def test_what_is_asked_while_all_is_dropped_fails_at_once() -> None:
    began = threading.Event()

    async def never(request: HttpRequest) -> HttpReply:
        began.set()
        await asyncio.sleep(60)
        raise AssertionError

    async def work(url: str) -> None:
        connections = HttpConnections(url)
        asking = asyncio.create_task(connections.ask("GET", "/", timeout_s=600))
        await asyncio.to_thread(began.wait, 60)
        connections.drop()
        with pytest.raises(ConnectionFailed):
            await asking
        await connections.close()

    with http_thread(HttpServer(never)) as server:
        asyncio.run(work(server.url))


def test_every_connection_is_closed_though_the_closing_is_cancelled() -> None:
    async def work(url: str) -> list[bool]:
        connections = HttpConnections(url)
        await asyncio.gather(*(connections.ask("POST", "/", {}, timeout_s=60) for _ in range(3)))
        transports = [connection.transport for connection in connections._idle]
        closing = asyncio.create_task(connections.close())
        await asyncio.sleep(0)  # in which it begins to wait for the first
        assert not closing.done()
        closing.cancel()
        await asyncio.wait([closing])
        return [transport.is_closing() for transport in transports]

    with http_thread(HttpServer(echo)) as server:
        assert asyncio.run(work(server.url)) == [True] * 3


def test_a_request_has_the_prefix_of_its_address_and_the_headers_it_is_given() -> None:
    def show(request: HttpRequest) -> HttpReply:
        return HttpReply.of_json({"path": request.path, "x": request.headers.get("x-own", "")})

    async def work(url: str) -> HttpAnswer:
        connections = HttpConnections(f"{url}/prefix/")
        try:
            return await connections.ask("GET", "/a", timeout_s=60, headers={"X-Own": "y"})
        finally:
            await connections.close()

    with http_thread(HttpServer(show)) as server:
        assert json.loads(asyncio.run(work(server.url)).body) == {"path": "/prefix/a", "x": "y"}


def test_a_blocking_request_gets_its_reply_or_fails_in_time() -> None:
    with http_thread(HttpServer(echo, token="right")) as server:
        statuses = [get(server.url, "/a", token=token, within_s=60).status for token in (None, "wrong", "right")]
    assert statuses == [HTTPStatus.UNAUTHORIZED, HTTPStatus.UNAUTHORIZED, HTTPStatus.OK]
    with pytest.raises(ConnectionRefusedError):
        get("http://127.0.0.1:9", "/", token=None, within_s=60)
    with replying(b"no HTTP\r\n\r\n") as url, pytest.raises(ConnectionFailed, match="no HTTP"):
        get(url, "/", token=None, within_s=60)


def test_a_reply_that_drips_does_not_outlast_the_time_of_its_request() -> None:
    listener, is_over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip() -> None:
        client, _ = listener.accept()
        with suppress(OSError), client:
            client.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not is_over.wait(0.05):
                client.sendall(b"a")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    with listener, pytest.raises(TimeoutError):
        get(f"http://127.0.0.1:{listener.getsockname()[1]}", "/", token=None, within_s=0.3)
    is_over.set()
    thread.join(60)
