"""A server that slow, greedy and foreign clients neither fill nor read, on the loopback."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse

import pytest

from envgym.errors import InvalidInput
from envgym.http_server import MAX_HEAD_BYTES, BoundedHandler, BoundedServer, is_loopback

PATIENCE_S = 30.0
"""Of the tests, far beyond the limits that they set."""
BLOCK = b"y" * (1 << 20)


class Echo(BoundedHandler):
    def get(self) -> None:
        self.send(HTTPStatus.OK, "text/plain", BLOCK * 16 if self.path == "/large" else self.path.encode())

    def post(self) -> None:
        try:
            self.send(HTTPStatus.OK, "text/plain", self.body(100))
        except InvalidInput as error:
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))


class Quick(BoundedServer):
    request_s = reply_s = 0.3
    idle_s = 0.5


@contextmanager
def running(server: BoundedServer) -> Iterator[BoundedServer]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server() -> Iterator[BoundedServer]:
    with running(BoundedServer("127.0.0.1", 0, Echo)) as running_server:
        yield running_server


@pytest.fixture
def quick() -> Iterator[BoundedServer]:
    with running(Quick("127.0.0.1", 0, Echo)) as running_server:
        yield running_server


def asked(
    server: BoundedServer, headers: Mapping[str, str], path: str = "/a", body: bytes | None = None
) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        response = connection.getresponse()
        response.text = response.read().decode()  # type: ignore[attr-defined]  # read before the connection is closed
        return response
    finally:
        connection.close()


def is_ended(client: socket.socket) -> bool:
    """Wait until the server has ended the connection."""
    client.settimeout(PATIENCE_S)
    with suppress(ConnectionError):
        while client.recv(1 << 16):
            pass
    return True


def test_one_connection_carries_several_requests(server: BoundedServer) -> None:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
    for path, body in [("/a", None), ("/b", b"x" * 100), ("/c", None)]:
        connection.request("GET" if body is None else "POST", path, body)
        assert connection.getresponse().read() == (path.encode() if body is None else body)
    connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nX: ",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n",
    ],
    ids=["head", "body", "refused body"],
)
def test_a_request_that_drips_is_ended_when_its_time_is_over(quick: BoundedServer, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", quick.server_port)) as client:
        client.sendall(sent)
        client.settimeout(0.05)
        for _ in range(400):  # a byte every 0.05 s: 20 s in all, where a request may take 0.3 s
            try:
                client.sendall(b"a")
                if not client.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the server still waits for the rest of the request")


def test_a_client_that_says_nothing_or_takes_nothing_is_let_go(quick: BoundedServer) -> None:
    with ExitStack() as stack:
        idle, deaf = (stack.enter_context(socket.create_connection(("127.0.0.1", quick.server_port))) for _ in "ab")
        deaf.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert is_ended(idle)
        while quick._connections._value < quick.max_connections:  # a deaf client's reply is given up
            threading.Event().wait(0.02)


class Few(BoundedServer):
    max_connections = 3


def test_more_clients_than_there_is_room_for_are_turned_away_and_room_comes_back() -> None:
    with running(Few("127.0.0.1", 0, Echo)) as few:
        num_threads = threading.active_count()
        with ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(("127.0.0.1", few.server_port), PATIENCE_S))
                for _ in range(4)
            ]
            assert clients[3].recv(12) == b"HTTP/1.1 503"
            assert threading.active_count() <= num_threads + few.max_connections
        while few._connections._value < few.max_connections:
            threading.Event().wait(0.02)
        assert asked(few, {}).status == HTTPStatus.OK


def test_a_head_without_end_is_not_read(server: BoundedServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        client.settimeout(PATIENCE_S)
        client.sendall(b"GET / HTTP/1.1\r\n")
        with suppress(ConnectionError):
            for number in range(90):  # 90 headers of 60 kB: each of them, and their number, is one that Python reads
                client.sendall(b"X%d: " % number + b"a" * 60_000 + b"\r\n")
            client.sendall(b"Host: localhost\r\n\r\n")
            assert not client.recv(1), f"a head of {90 * 60_000} bytes must be refused, {MAX_HEAD_BYTES} are allowed"


@pytest.mark.parametrize(
    "headers, body",
    [
        ({"Content-Length": "101"}, b"x" * 101),
        ({"Content-Length": "-5"}, b""),
        ({"Content-Length": "1e3"}, b""),
        ({"Transfer-Encoding": "chunked"}, b"0\r\n\r\n"),
    ],
)
def test_a_body_that_is_too_long_or_of_no_known_length_is_refused(
    server: BoundedServer, headers: Mapping[str, str], body: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        client.settimeout(PATIENCE_S)
        client.sendall(f"POST / HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode() + body)
        assert client.recv(12) == b"HTTP/1.1 400"
        assert is_ended(client)


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
    server: BoundedServer, headers: Mapping[str, str], refusal: str | None, body: bytes | None
) -> None:
    response = asked(server, headers, body=body)
    text = response.text  # type: ignore[attr-defined]  # set by `asked`
    assert response.status == (HTTPStatus.OK if refusal is None else HTTPStatus.FORBIDDEN)
    assert refusal is None or json.loads(text)["detail"].startswith(refusal)


@pytest.mark.parametrize(
    "given, status", [(None, 401), ("Bearer other", 401), ("secret", 401), ("Bearer é", 401), ("Bearer secret", 200)]
)
def test_where_there_is_a_token_requests_need_it(given: str | None, status: int) -> None:
    with running(BoundedServer("0.0.0.0", 0, Echo, token="secret")) as server:
        headers = {"Host": "any.name", **({} if given is None else {"Authorization": given})}
        assert asked(server, headers).status == status


def test_an_address_that_others_reach_needs_a_token() -> None:
    with pytest.raises(InvalidInput, match="server must have a token where others reach it, got none"):
        BoundedServer("0.0.0.0", 0, Echo)
    names = ["127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "::", "", "10.0.0.1", "localhost.example"]
    assert [is_loopback(name) for name in names] == [True] * 4 + [False] * 5
