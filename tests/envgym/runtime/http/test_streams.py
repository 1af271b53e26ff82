"""Replies in parts over the loopback and a Unix socket: their order, their pace, and clients that leave."""

import asyncio
import socket
import stat
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.errors import InvalidInput
from envgym.runtime.event_loop import LoopThread
from envgym.runtime.http.client import ReplyReader
from envgym.runtime.http.server import Handler, HttpLimits, HttpReply, HttpRequest, HttpServer
from envgym.runtime.http.streams import HttpStream
from tests.support.env_server import wait_until
from tests.support.http_server import http_thread

PATIENCE_S = 30.0
BLOCK = b"z" * (1 << 16)
GET = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def parts(*chunks: bytes) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


def stream(*chunks: bytes) -> HttpStream:
    return HttpStream(HTTPStatus.OK, parts(*chunks))


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), PATIENCE_S)


@contextmanager
def client_of(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S, trust_env=False) as client:
        yield client


def read_until(client: socket.socket, text: bytes) -> None:
    received = b""
    while text not in received:
        received += client.recv(1 << 10)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_reply_in_parts_arrives_in_order_and_the_connection_is_kept(*, is_late: bool) -> None:
    async def later(reply: HttpStream | HttpReply) -> HttpStream | HttpReply:
        await asyncio.sleep(0)
        return reply

    def handler(request: HttpRequest) -> HttpStream | HttpReply | asyncio.Task[HttpStream | HttpReply]:
        chunks = [b"data: %d\n\n" % number for number in range(100)]
        reply = stream(*chunks, b"") if request.path == "/stream" else HttpReply(HTTPStatus.OK, b"plain")
        return asyncio.ensure_future(later(reply)) if is_late else reply

    with http_thread(HttpServer(handler)) as server, client_of(server) as client:
        for _ in range(2):
            with client.stream("GET", "/stream") as response:
                lines = [line for line in response.iter_lines() if line]
            assert lines == [f"data: {number}" for number in range(100)]
            assert response.headers["content-type"] == "text/event-stream"
            assert response.headers["transfer-encoding"] == "chunked"
            assert "content-length" not in response.headers
            assert client.get("/plain").content == b"plain"
            assert len(server.connections) == 1, "all four share one connection"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=8))
def test_the_framing_is_read_as_one_body(chunks: list[bytes]) -> None:
    with http_thread(HttpServer(lambda request: stream(*chunks))) as server, connect(server) as client:
        client.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % b"")
        answer = None
        reader = ReplyReader(1 << 20)
        while answer is None:
            answer = reader.feed(client.recv(1 << 16))
        assert client.recv(1) == b"", "the client wanted the connection closed"
    assert (answer.status, answer.body, answer.headers["connection"]) == (200, b"".join(chunks), "close")


def test_requests_that_follow_a_stream_at_once_are_answered_after_it() -> None:
    def handler(request: HttpRequest) -> HttpStream | HttpReply:
        return stream(b"one", b"two") if request.path == "/s" else HttpReply(HTTPStatus.OK, b"plain")

    with http_thread(HttpServer(handler)) as server, connect(server) as client:
        client.sendall(GET % b"s" + GET % b"p" + GET % b"s" + (GET % b"p")[:-2] + b"Connection: close\r\n\r\n")
        text = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert text.count(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n") == 2
    assert [part.rpartition(b"\r\n\r\n")[2] for part in text.split(b"HTTP/1.1 200 OK")[2::2]] == [b"plain"] * 2


def test_the_next_part_is_made_when_the_client_has_taken_the_last() -> None:
    made, sent = list[int](), list[bool]()
    goes_on = threading.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        for number in range(1 << 20):
            made.append(number)
            yield BLOCK

    def handler(request: HttpRequest) -> HttpStream | HttpReply:
        if request.path == "/count":
            goes_on.set()
            return HttpReply(HTTPStatus.OK, b"%d" % len(made))
        return HttpStream(HTTPStatus.OK, endless(), on_sent=sent.append)

    with http_thread(HttpServer(handler)) as server, connect(server) as slow, client_of(server) as client:
        slow.sendall(GET % b"")
        wait_until(lambda: bool(made) and len(made) == int(client.get("/count").content))
        counts = [int(client.get("/count").content) for _ in range(20)]
        assert counts[-1] < 1000, "64 MB are far more than the buffers of a connection"
        before = len(made)
        taken = 0
        while taken < 64 * len(BLOCK):
            taken += len(slow.recv(1 << 16))
        wait_until(lambda: len(made) > before)
        slow.close()
        wait_until(lambda: sent == [False])


@pytest.mark.parametrize("waits", [True, False], ids=["waits for a part", "waits for the client"])
def test_a_client_that_leaves_ends_the_stream(*, waits: bool) -> None:
    ended, sent = list[str](), list[bool]()

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            while True:
                if waits:
                    await asyncio.sleep(PATIENCE_S)
                yield BLOCK
        except (asyncio.CancelledError, GeneratorExit) as error:
            ended.append(type(error).__name__)
            raise

    handler: Handler = lambda request: HttpStream(HTTPStatus.OK, chunks(), on_sent=sent.append)  # noqa: E731
    with http_thread(HttpServer(handler)) as server:
        with connect(server) as client:
            client.sendall(GET % b"")
            read_until(client, b"first")
        wait_until(lambda: bool(sent))
        assert (ended, sent) == (["CancelledError" if waits else "GeneratorExit"], [False])
        assert not server.streams


def test_a_client_that_takes_nothing_is_dropped_when_its_time_is_over() -> None:
    sent = list[bool]()
    reply = HttpStream(HTTPStatus.OK, parts(*[BLOCK] * 1000), on_sent=sent.append)
    server = HttpServer(lambda request: reply, limits=HttpLimits(reply_s=0.3))
    with http_thread(server), connect(server) as deaf:
        deaf.sendall(GET % b"")
        wait_until(lambda: sent == [False])


def test_a_stream_outlasts_the_time_between_requests() -> None:
    limits = HttpLimits(idle_s=0.2, request_s=0.2)
    go_on = threading.Event()

    async def slow() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await asyncio.to_thread(go_on.wait, PATIENCE_S)
        yield b"b"

    server = HttpServer(lambda request: HttpStream(HTTPStatus.OK, slow()), limits=limits)
    with http_thread(server), client_of(server) as client, client.stream("GET", "/") as response:
        with closing(connect(server)) as idle:
            assert idle.recv(1) == b"", "an idle connection is dropped while the stream waits"
        go_on.set()
        assert response.read() == b"ab"


def test_a_stream_that_fails_is_cut_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    sent = list[bool]()

    async def broken() -> AsyncGenerator[bytes, None]:
        yield b"a"
        raise KeyError("version")

    handler: Handler = lambda request: HttpStream(HTTPStatus.OK, broken(), on_sent=sent.append)  # noqa: E731
    with http_thread(HttpServer(handler)) as server, client_of(server) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("/a")
        wait_until(lambda: sent == [False])
    assert caplog.messages == ["GET /a failed"]


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_reply_counts_as_sent_when_the_client_has_room_for_all_of_it(*, is_stream: bool) -> None:
    sent = list[bool]()

    def handler(request: HttpRequest) -> HttpStream | HttpReply:
        body = BLOCK * 256
        if is_stream:
            return HttpStream(HTTPStatus.OK, parts(body), on_sent=sent.append)
        return HttpReply(HTTPStatus.OK, body, on_sent=sent.append)

    with http_thread(HttpServer(handler)) as server:
        with connect(server) as leaver:
            leaver.sendall(GET % b"")
            assert leaver.recv(12) == b"HTTP/1.1 200"
            assert sent == []
        wait_until(lambda: sent == [False])
        with client_of(server) as client:
            assert client.get("/").content == BLOCK * 256
            wait_until(lambda: sent == [False, True])


def test_a_reply_to_a_client_that_has_left_before_is_not_sent() -> None:
    began, go_on, sent = threading.Event(), threading.Event(), list[bool]()

    async def wait(request: HttpRequest) -> HttpReply:
        began.set()
        await asyncio.to_thread(go_on.wait, PATIENCE_S)
        return HttpReply(HTTPStatus.OK, b"a", on_sent=sent.append)

    with http_thread(HttpServer(wait)) as server:
        with connect(server) as client:
            client.sendall(GET % b"")
            assert began.wait(PATIENCE_S)
        wait_until(lambda: not server.connections)
        go_on.set()
        wait_until(lambda: sent == [False])


def test_closing_the_server_ends_its_streams() -> None:
    ended = list[str]()

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            await asyncio.sleep(PATIENCE_S)
        finally:
            await asyncio.sleep(0)
            ended.append("closed")

    server = HttpServer(lambda request: HttpStream(HTTPStatus.OK, chunks()))
    with http_thread(server), connect(server) as client:
        client.sendall(GET % b"")
        read_until(client, b"first")
    assert ended == ["closed"]


# ---- a Unix socket ---------------------------------------------------------------------------------------------------


@contextmanager
def unix_thread(server: HttpServer, path: Path) -> Iterator[str]:
    thread = LoopThread("http-server")
    try:
        yield thread.run(server.listen_unix(path))
    finally:
        thread.close(server.close())


def test_a_unix_socket_answers_its_user_whatever_host_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    handler: Handler = lambda request: HttpReply(HTTPStatus.OK, request.path.encode())  # noqa: E731
    for _ in range(2):
        with unix_thread(HttpServer(handler), path) as url:
            assert url == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=PATIENCE_S) as client:
                assert client.get("http://any.name/a").content == b"/a"
                assert client.get("http://any.name/a", headers={"Origin": "http://other"}).status_code == 403
        assert not path.exists()


def test_a_unix_socket_may_need_a_token(tmp_path: Path) -> None:
    server = HttpServer(lambda request: stream(b"a", b"b"), token="secret")
    transport = httpx.HTTPTransport(uds=str(tmp_path / "s"))
    with unix_thread(server, tmp_path / "s"), httpx.Client(transport=transport, timeout=PATIENCE_S) as client:
        get = partial(client.get, "http://h/")
        assert get().status_code == HTTPStatus.UNAUTHORIZED
        assert get(headers={"Authorization": "Bearer secret"}).content == b"ab"


@pytest.mark.parametrize("name", ["missing/s", "x" * 120])
def test_a_path_that_cannot_be_used_is_told(tmp_path: Path, name: str) -> None:
    server = HttpServer(lambda request: stream())
    with pytest.raises(InvalidInput, match="Unix socket must be free to listen on, got "):
        asyncio.run(server.listen_unix(tmp_path / name))
