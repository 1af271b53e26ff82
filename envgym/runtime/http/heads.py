"""Heads of HTTP/1.1: those of requests, which are read, and those of replies, which are written."""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple

from envgym.errors import sentence

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Refused(NamedTuple):
    """Why a request is not answered."""

    status: HTTPStatus
    detail: str


class RequestHead(NamedTuple):
    """The head of a request."""

    text: bytes
    method: str = ""
    path: str = ""
    query: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    """Names in lower case."""
    is_last: bool = False
    """Whether the client wants the connection closed after the reply."""

    @property
    def target(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path


def read_head(text: bytes, url: str) -> RequestHead | Refused:
    """Read the head of a request to the server at `url`."""
    lines = text.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or name in headers or name != name.strip():
            return _malformed("header", "be a name, a colon and a value, each once", line, url)
        headers[name] = value.strip()
    if len(words) != 3 or words[0] not in ("GET", "POST") or words[2] != "HTTP/1.1":
        return _malformed("request", "be a GET or POST of HTTP/1.1", lines[0], url)
    path, _, query = words[1].partition("?")
    return RequestHead(text, words[0], path, query, headers, headers.get("connection", "").lower() == "close")


def body_length(head: RequestHead, url: str, *, max_bytes: int) -> int | Refused:
    """Return how many bytes the body has that follows a head, at most `max_bytes`."""
    size = head.headers.get("content-length", "0" if head.method == "GET" else "")
    if "transfer-encoding" in head.headers or not (size.isascii() and size.isdecimal() and len(size) < 12):
        return _malformed("Content-Length", "say how long the body is", size, url)
    if int(size) > max_bytes:
        must, do = f"have at most {max_bytes} bytes", "send less at once"
        return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence("body", must, size, where=head.target, do=do))
    return int(size)


def _malformed(what: str, must: str, got: str, url: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, sentence(what, must, got, where=url, do="send plain HTTP/1.1"))


def write_head(
    status: HTTPStatus, content_type: str, headers: Mapping[str, str], length: int | None, *, is_last: bool
) -> bytes:
    """Write the head of a reply whose body has `length` bytes; None: the body is sent in chunks."""
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items()) if headers else ""
    if is_last:
        more += "Connection: close\r\n"
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n{framing}\r\n{more}\r\n"
    return head.encode("latin-1")
