"""Who may ask: this machine by its own name, no page of another origin, and with the token beyond loopback."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx
import pytest

from envgym.errors import InvalidInput
from envgym.viewer import server as server_module
from envgym.viewer.access import COOKIE, PAGE_HEADER
from envgym.viewer.server import LIMITS, ViewerServer, running
from envgym.viewer.viewed_run import ViewedRun

TOKEN = "the-token-of-the-viewer"


@pytest.fixture
def guarded(viewed: ViewedRun) -> Iterator[httpx.Client]:
    """Return a client of a viewer with a token."""
    made = ViewerServer([viewed], token=TOKEN)
    with running(made), httpx.Client(base_url=made.url) as client:
        yield client


def test_every_answer_forbids_foreign_scripts_and_frames(client: httpx.Client) -> None:
    for path in ("/", "/api/runs", "/api/nothing", "/assets/main.js"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "headers,sentence",
    [
        ({"Host": "evil.example"}, "Host must name this machine, got evil.example"),
        ({"Origin": "http://evil.example"}, "Origin must be this server, got http://evil.example"),
        ({"Origin": "null"}, "Origin must be this server, got null"),
    ],
)
def test_pages_of_others_are_refused(client: httpx.Client, headers: dict[str, str], sentence: str) -> None:
    for path in ("/", "/api/runs", "/assets/main.js"):
        reply = client.get(path, headers=headers)
        assert reply.status_code == 403
        assert reply.json()["detail"].startswith(sentence)


def test_own_origin_is_let_through(client: httpx.Client) -> None:
    assert client.get("/api/runs", headers={"Origin": str(client.base_url).rstrip("/")}).status_code == 200


@pytest.mark.parametrize("given,got", [({}, "none"), ({"Authorization": "Bearer wrong"}, "another")])
def test_wrong_token_is_one_sentence(guarded: httpx.Client, given: dict[str, str], got: str) -> None:
    reply = guarded.get("/api/runs", headers=given)
    assert reply.status_code == 401
    assert reply.json()["detail"] == (
        f"token must be the server's, got {got} (/?token=TOKEN, or the header Authorization: Bearer TOKEN); "
        "open the address that `envgym view` printed."
    )
    assert guarded.get("/", params={"token": "wrong"}).status_code == 401
    assert guarded.get("/api/runs", headers={"Cookie": f"{COOKIE}=wrong"}).status_code == 401


def test_token_in_the_address_becomes_a_cookie(guarded: httpx.Client) -> None:
    reply = guarded.get("/", params={"token": TOKEN})
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    assert "HttpOnly; SameSite=Strict" in reply.headers["set-cookie"]
    assert guarded.get("/api/runs").status_code == 200, "the client keeps the cookie"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(guarded.base_url.join("/api/runs"), headers=headers).status_code == 200


def test_address_that_others_reach_needs_a_token(viewed: ViewedRun) -> None:
    with (
        pytest.raises(InvalidInput, match=r"server must have a token where others reach it, got none \(0\.0\.0\.0\)"),
        running(ViewerServer([viewed]), host="0.0.0.0"),
    ):
        pass


def test_address_that_is_taken_is_one_sentence(server: ViewerServer, viewed: ViewedRun) -> None:
    port = int(server.url.rpartition(":")[2])
    with (
        pytest.raises(InvalidInput, match=rf"address must be free to listen on, got 127\.0\.0\.1 port {port}"),
        running(ViewerServer([viewed]), port=port),
    ):
        pass


def test_long_body_is_refused(client: httpx.Client) -> None:
    reply = client.post("/api/play", content=b"x" * (LIMITS.body_bytes + 1))
    assert reply.status_code == 413
    assert reply.json()["detail"].startswith(f"body must have at most {LIMITS.body_bytes} bytes")


def test_half_open_connections_keep_nobody_out(server: ViewerServer, client: httpx.Client) -> None:
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with ExitStack() as stack:
        for number in range(2 * LIMITS.connections):
            made = stack.enter_context(closing(socket.create_connection(address)))
            if number % 2:
                made.sendall(b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")
        for _ in range(5):
            with httpx.Client(base_url=server.url) as fresh:
                assert fresh.get("/api/runs").json()["runs"][0]["problems"] == []
        assert client.get("/api/runs").status_code == 200
        assert len(server.connections) <= LIMITS.connections + 1


def test_unfinished_request_is_given_up(viewed: ViewedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server_module, "LIMITS", LIMITS._replace(request_s=0.3))
    made = ViewerServer([viewed])
    with running(made), socket.create_connection(("127.0.0.1", int(made.url.rpartition(":")[2]))) as slow:
        token = httpx.get(f"{made.url}/api/page").json()["page_token"]
        head = f"POST /api/play HTTP/1.1\r\nHost: 127.0.0.1\r\n{PAGE_HEADER}: {token}\r\nContent-Length: 100\r\n\r\n"
        slow.sendall(head.encode() + b"{")
        slow.settimeout(120)  # of which the server waits for 0.3 s
        with suppress(ConnectionResetError):
            assert slow.recv(100) == b""


@pytest.mark.parametrize(
    "path,body", [("/api/env", {"env_id": "math/arithmetic-v0"}), ("/api/play", {"env_id": "math/arithmetic-v0"})]
)
def test_no_address_alone_makes_an_environment(server: ViewerServer, path: str, body: dict[str, str]) -> None:
    with httpx.Client(base_url=server.url, timeout=30.0) as stranger:
        assert stranger.get(path, params={**body, "id": body["env_id"]}).status_code == 405
        for headers, got in (({}, "no token"), ({PAGE_HEADER: "wrong"}, "another token")):
            reply = stranger.post(path, json=body, headers=headers)
            assert reply.status_code == 403
            assert reply.json()["detail"].startswith(f"{PAGE_HEADER} must be the page's token, got {got}")
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert stranger.post(path, content=b"env_id=math/arithmetic-v0", headers=form).status_code == 403
        token = {PAGE_HEADER: stranger.get("/api/page").json()["page_token"]}
        assert stranger.post(path, json=body, headers={**token, "Origin": "http://evil.example"}).status_code == 403
        assert stranger.post(path, json=body, headers=token).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_browser_that_asks_for_another_site_is_refused(client: httpx.Client, site: str) -> None:
    for path in ("/api/runs", "/api/page", "/assets/main.js"):
        assert client.get(path, headers={"Sec-Fetch-Site": site}).status_code == 403
    assert client.get("/", headers={"Sec-Fetch-Site": site}).status_code == 200
    assert client.get("/api/runs", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_a_redirect_from_a_file_gives_the_cookie_without_a_further_redirect(guarded: httpx.Client) -> None:
    reply = guarded.get("/", params={"token": TOKEN}, headers={"Sec-Fetch-Site": "cross-site"})
    assert (reply.status_code, 'content="0; url=/"' in reply.text) == (200, True)
    assert "SameSite=Strict" in reply.headers["set-cookie"]
    assert TOKEN not in reply.text
