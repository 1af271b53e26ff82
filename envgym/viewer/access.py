"""Who may ask the viewer, and what a browser may do with its pages.

On a loopback address a request must name this machine as its `Host`; on any other it must carry the token, which a
browser gives once, in the address, and then keeps in a cookie. Pages of other origins are refused everywhere. A page
may load scripts, styles and data from this server alone, and runs no script that is not a file of it.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractContextManager
from hmac import compare_digest
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs

from envgym.core.json_types import well_formed
from envgym.errors import sentence
from envgym.http_server import refusal

MAX_BODY_BYTES: Final = 1 << 20
COOKIE: Final = "envgym_view"
HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Send], Awaitable[None]]


class AccessCheck:
    """ASGI middleware: refuses who may not ask, with a sentence, and adds the headers of `HEADERS` to every answer."""

    def __init__(
        self, app: App, *, url: str, is_local: bool, token: str | None, requests: AbstractContextManager[None]
    ) -> None:
        """Let through to `app` what may ask, each request inside `requests`."""
        self.app, self.url, self.is_local, self.token, self.requests = app, url, is_local, token, requests

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]], send: Send
    ) -> None:
        """Answer one request."""
        if scope["type"] != "http":  # the start and the end of the server
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if token := given or _cookie(headers.get("cookie", "")):
            headers.setdefault("authorization", f"Bearer {token}")
        refused = refusal(headers, url=self.url, is_local=self.is_local, token=self.token) or _too_long(scope, headers)
        if refused is not None:
            status, detail = refused
            body = well_formed(json.dumps({"detail": detail}, ensure_ascii=False)).encode()
            await _reply(send_with_headers, status, [(b"content-type", b"application/json")], body)
        elif given and scope["path"] == "/" and self.token and compare_digest(given.encode(), self.token.encode()):
            # The token leaves the address bar, and with it the history.
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            fields = [(b"location", b"/"), (b"set-cookie", cookie.encode())]
            await _reply(send_with_headers, HTTPStatus.SEE_OTHER, fields, b"")
        else:
            with self.requests:
                await self.app(scope, receive, send_with_headers)


def _too_long(scope: MutableMapping[str, Any], headers: dict[str, str]) -> tuple[HTTPStatus, str] | None:
    if scope["method"] in ("GET", "HEAD"):
        return None
    length = headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and len(length) < 12 and int(length) <= MAX_BODY_BYTES:
        return None
    got, do = length or "no Content-Length", "send less at once"
    must = f"have 0 to {MAX_BODY_BYTES} bytes"
    return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence("body", must, got, where=scope["path"], do=do)


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


async def _reply(send: Send, status: HTTPStatus, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": int(status), "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
