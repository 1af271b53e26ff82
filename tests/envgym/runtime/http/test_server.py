"""A server that slow, greedy and foreign clients neither fill nor read, on the loopback."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse

import pytest

from envgym.errors import InvalidInput
from envgym.runtime.http.access import MAX_HEAD_BYTES
from envgym.runtime.http.server import HttpLimits, HttpReply, HttpRequest, HttpServer
from envgym.runtime.http.threads import ThreadedHandler
from tests.support.env_server import wait_until
from tests.support.http_server import http_thread

PATIENCE_S = 30.0
"""Of the tests, far beyond the limits that they set."""
BLOCK = b"y" * (1 << 20)
QUICK = HttpLimits(request_s=0.3, reply_s=0.3, idle_s=0.5)


def echo(request: HttpRequest) -> HttpReply:
    if request.path == "/large":
        return HttpReply(HTTPStatus.OK, BLOCK * 16, "text/plain")
    return HttpReply(HTTPStatus.OK, request.body or request.path.encode(), "text/plain", {"X-Query": request.query})


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_thread(HttpServer(echo, limits=HttpLimits(body_bytes=100))) as running_server:
        yield running_server


@pytest.fixture
def quick() -> Iterator[HttpServer]:
    with http_thread(HttpServer(echo, limits=QUICK)) as running_server:
        yield running_server


def port(server: HttpServer) -> int:
    return int(server.url.rpartition(":")[2])


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port(server)), PATIENCE_S)


def asked(server: HttpServer, headers: Mapping[str, str], path: str = "/a", body: bytes | None = None) -> HTTPResponse:
    with closing(HTTPConnection("127.0.0.1", port(server), timeout=PATIENCE_S)) as connection:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        response = connection.getresponse()
        response.text = response.read().decode()  # type: ignore[attr-defined]  # read before the connection is closed
        return response


def raw(server: HttpServer, data: bytes) -> bytes:
    with connect(server) as client:
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def is_ended(client: socket.socket) -> bool:
    """Wait until the server has ended the connection."""
    client.settimeout(PATIENCE_S)
    with suppress(ConnectionError):
        while client.recv(1 << 16):
            pass
    return True


# ---- requests and replies -------------------------------------------------------------------------------------------


def test_one_connection_carries_several_requests(server: HttpServer) -> None:
    with closing(HTTPConnection("127.0.0.1", port(server), timeout=PATIENCE_S)) as connection:
        for path, body in [("/a?b=c", None), ("/b", b"x" * 100), ("/b", b"y" * 100), ("/c", None)]:
            connection.request("GET" if body is None else "POST", path, body)
            response = connection.getresponse()
            assert response.read() == (path.partition("?")[0].encode() if body is None else body)
            assert response.headers["X-Query"] == path.partition("?")[2]


def test_requests_that_follow_each_other_at_once_are_answered_in_order_until_the_last() -> None:
    async def later(request: HttpRequest) -> HttpReply:
        await asyncio.sleep(0.05 if request.path == "/1" else 0)
        return echo(request)

    one, last = b"GET /1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET /2 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with http_thread(HttpServer(later)) as server:
        answer = raw(server, one + last + b"Connection: close\r\n\r\n" + one)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.index(b"/1") < answer.index(b"/2")
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize(
    "sent, status, reason",
    [
        (b"nonsense\r\n\r\n", 400, b"request must be a GET or POST"),
        (b"\x16\x03\x01\x02 not HTTP at all\r\n\r\n", 400, b"request must be a GET or POST"),
        (b"PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, b"request must be a GET or POST"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400, b"each once"),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, b"Host must name this machine"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://a\r\n\r\n", 403, b"Origin must be this server"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, b"Content-Length must say how long"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", 400, b"Content-Length must say"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1e3\r\n\r\n", 400, b"Content-Length must say"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            b"Content-Length must say",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 101\r\n\r\n" + b"x" * 101,
            413,
            b"body must have at most 100 bytes, got 101",
        ),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, 431, b"request header must have at most"),
    ],
)
def test_what_is_no_request_is_one_sentence(server: HttpServer, sent: bytes, status: int, reason: bytes) -> None:
    answer = raw(server, sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.partition(b"\r\n\r\n")[2].startswith(b'{"detail":"')
    assert reason in answer


def test_the_form_of_an_error_is_that_of_the_server() -> None:
    def form(status: HTTPStatus, detail: str) -> HttpReply:
        return HttpReply.of_json({"code": status.value, "text": detail[:4]}, status)

    with http_thread(HttpServer(echo, error_form=form)) as server:
        response = asked(server, {"Host": "evil.example"})
    assert (response.status, response.text) == (403, '{"code":403,"text":"Host"}')  # type: ignore[attr-defined]


@pytest.mark.parametrize("failure", [KeyError("version"), None])
@pytest.mark.parametrize("is_late", [True, False])
def test_a_request_that_fails_is_told_so_at_once_and_logged(
    failure: Exception | None, is_late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(request: HttpRequest) -> "asyncio.Future[HttpReply]":
        if not is_late and failure is not None:
            raise failure
        reply: asyncio.Future[HttpReply] = asyncio.get_running_loop().create_future()
        if failure is None:
            reply.cancel()
        else:
            reply.set_exception(failure)
        return reply

    with http_thread(HttpServer(handler)) as server:
        responses = [asked(server, {}, "/a?b=c", b"") for _ in range(2)]
    told = "KeyError: 'version'" if failure is not None else "CancelledError"
    for response in responses:
        assert response.status == HTTPStatus.INTERNAL_SERVER_ERROR
        assert f"request must be answered, got {told} (" in response.text  # type: ignore[attr-defined]
    assert caplog.messages == ["POST /a failed"] * 2


# ---- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nX: ",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nX: ",
    ],
    ids=["head", "body", "refused body", "head after a request"],
)
def test_a_request_that_drips_is_ended_when_its_time_is_over(sent: bytes) -> None:
    with http_thread(HttpServer(echo, limits=QUICK._replace(idle_s=1000))) as server, connect(server) as client:
        client.sendall(sent)
        client.settimeout(0.05)
        for _ in range(400):  # a byte every 0.05 s: 20 s in all, where a request may take 0.3 s
            try:
                client.sendall(b"a")
                if not client.recv(1 << 16):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the server still waits for the rest of the request")


def test_a_client_that_says_nothing_or_takes_nothing_is_let_go(quick: HttpServer) -> None:
    with ExitStack() as stack:
        idle, deaf = (stack.enter_context(connect(quick)) for _ in "ab")
        deaf.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert is_ended(idle)
        wait_until(lambda: not quick.connections)  # a deaf client's reply is given up


def test_more_clients_than_there_is_room_for_are_turned_away_and_room_comes_back() -> None:
    with http_thread(HttpServer(echo, limits=HttpLimits(connections=3))) as few:
        with ExitStack() as stack:
            clients = [stack.enter_context(connect(few)) for _ in range(4)]
            assert clients[3].recv(12) == b"HTTP/1.1 503"
        wait_until(lambda: not few.connections)
        assert asked(few, {}).status == HTTPStatus.OK


def test_a_head_without_end_is_not_read(server: HttpServer) -> None:
    with connect(server) as client:
        with suppress(ConnectionError):
            client.sendall(b"GET / HTTP/1.1\r\n")
            for number in range(90):  # 90 headers of 60 kB
                client.sendall(b"X%d: " % number + b"a" * 60_000 + b"\r\n")
            client.sendall(b"Host: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 431", f"{MAX_HEAD_BYTES} bytes are allowed"
        assert is_ended(client)


# ---- who may ask ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers, refusal",
    [
        ({}, None),
        ({"Host": "localhost:8000"}, None),
        ({"Host": "[::1]:8000"}, None),
        ({"Host": "127.0.0.1", "Origin": "http://127.0.0.1"}, None),
        ({"Host": "attacker.example:8000"}, "Host must name this machine, got attacker.example:8000"),
        ({"Host": "127.0.0.1.attacker.example"}, "Host must name this machine"),
        ({"Host": "[127.0.0.1"}, "Host must name this machine"),
        (
            {"Host": "127.0.0.1", "Origin": "http://attacker.example"},
            "Origin must be this server, got http://attacker.ex",
        ),
        ({"Host": "127.0.0.1", "Origin": "null"}, "Origin must be this server, got null"),
        ({"Host": "127.0.0.1", "Origin": "http://127.0.0.1:1"}, "Origin must be this server"),
    ],
)
@pytest.mark.parametrize("body", [None, b"x"])
def test_a_page_of_another_site_is_refused(
    server: HttpServer, headers: Mapping[str, str], refusal: str | None, body: bytes | None
) -> None:
    response = asked(server, headers, body=body)
    text = response.text  # type: ignore[attr-defined]  # set by `asked`
    assert response.status == (HTTPStatus.OK if refusal is None else HTTPStatus.FORBIDDEN)
    assert refusal is None or json.loads(text)["detail"].startswith(refusal)


@pytest.mark.parametrize(
    "given, status", [(None, 401), ("Bearer other", 401), ("secret", 401), ("Bearer é", 401), ("Bearer secret", 200)]
)
def test_where_there_is_a_token_requests_need_it(given: str | None, status: int) -> None:
    with http_thread(HttpServer(echo, token="secret"), "0.0.0.0") as server:
        headers = {"Host": "any.name", **({} if given is None else {"Authorization": given})}
        assert asked(server, headers).status == status


def test_an_address_that_others_reach_needs_a_token() -> None:
    with pytest.raises(InvalidInput, match="server must have a token where others reach it, got none"):
        asyncio.run(HttpServer(echo).listen("0.0.0.0", 0))


def test_an_address_that_is_taken_is_told(server: HttpServer) -> None:
    told = rf"address must be free to listen on, got 127\.0\.0\.1 port {port(server)} \(Address already in use\)"
    with pytest.raises(InvalidInput, match=told):
        asyncio.run(HttpServer(echo).listen("127.0.0.1", port(server)))


# ---- answers that take time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cancels_abandoned", [True, False])
def test_what_a_client_that_left_has_asked_for_is_cancelled_where_the_server_says_so(cancels_abandoned: bool) -> None:
    began, go_on, ended = threading.Event(), threading.Event(), list[str]()

    async def wait(request: HttpRequest) -> HttpReply:
        began.set()
        try:
            await asyncio.to_thread(go_on.wait, PATIENCE_S)
            ended.append("answered")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return echo(request)

    with http_thread(HttpServer(wait, cancels_abandoned=cancels_abandoned)) as server:
        with connect(server) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert began.wait(PATIENCE_S)
        wait_until(lambda: not server.connections)
        if cancels_abandoned:
            wait_until(lambda: bool(ended))
        go_on.set()
        wait_until(lambda: bool(ended))
    assert ended == ["cancelled" if cancels_abandoned else "answered"]


def test_a_blocking_answer_gets_one_of_few_threads_and_the_others_wait_no_longer_than_they_may() -> None:
    go_on, running = threading.Event(), list[str]()

    def block(request: HttpRequest) -> HttpReply:
        running.append(threading.current_thread().name)
        if request.path == "/wait":
            assert go_on.wait(PATIENCE_S)
        return echo(request)

    with http_thread(HttpServer(ThreadedHandler(block, threads=2, wait_s=0.1))) as server, ExitStack() as stack:
        waiting = [stack.enter_context(connect(server)) for _ in range(2)]
        for client in waiting:
            client.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: len(running) == 2)
        response = asked(server, {})
        assert response.status == HTTPStatus.SERVICE_UNAVAILABLE  # and not what a thread answers that has become free
        assert "server must have time, got too many requests" in response.text  # type: ignore[attr-defined]
        go_on.set()
        assert [client.recv(15) for client in waiting] == [b"HTTP/1.1 200 OK"] * 2
        assert asked(server, {}).status == HTTPStatus.OK
    assert len(set(running)) <= 2


def test_a_server_as_the_main_program_answers_until_it_is_cancelled() -> None:
    async def work() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(HttpServer(echo).serve("127.0.0.1", 0, ready.set_result))
        host, _, number = (await ready).removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(number))
        writer.write(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection(host, int(number))

    asyncio.run(work())
