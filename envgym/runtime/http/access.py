"""Who may request what of a server, and which addresses a server may have.

Who may request: on a loopback address, requests that name this machine as their `Host` (a page of a name that was
pointed here, DNS rebinding, names its own); on any other address, those that carry the server's token. Requests that a
browser sends for a page of another origin are refused everywhere.
"""

import os
from collections.abc import Mapping
from hmac import compare_digest
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from envgym.errors import InvalidInput, sentence

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers together."""


def is_loopback(address: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def refusal(
    headers: Mapping[str, str], *, url: str, is_local: bool, token: str | None
) -> tuple[HTTPStatus, str] | None:
    """Return why a server does not answer a request, if it does not; None: it does.

    Args:
        headers: of the request; names in lower case.
        url: the server's address.
        is_local: whether only this machine reaches it.
        token: what the client must know; None: nothing.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if is_local and not is_loopback(_name(host)):
        do = "request it by the address of the server"
        return HTTPStatus.FORBIDDEN, sentence("Host", "name this machine", host, where=url, do=do)
    if origin is not None and origin.lower() != f"http://{host}".lower():
        do = "send the request without a browser"
        return HTTPStatus.FORBIDDEN, sentence("Origin", "be this server", origin, where=url, do=do)
    authorization = headers.get("authorization", "").encode(errors="replace")
    if token and not compare_digest(authorization, f"Bearer {token}".encode()):
        got, do = "another" if authorization else "none", "send the token that the server was started with"
        where = "Authorization: Bearer TOKEN"
        return HTTPStatus.UNAUTHORIZED, sentence("token", "be the server's", got, where=where, do=do)
    return None


def check_token(host: str, token: str | None) -> None:
    """Check that a server has a token if other machines reach it. Raises: InvalidInput: it has none."""
    do = "listen on 127.0.0.1, or set a token"
    holds = bool(token) or is_loopback(host)
    InvalidInput.unless(holds, "server", "have a token where others reach it", "none", where=host, do=do)


def address_url(host: str, port: int) -> str:
    """Return the URL of an address."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def unusable_address(host: str, port: int, error: Exception) -> InvalidInput:
    """Return the error of a command that cannot listen on an address."""
    number = getattr(error, "errno", None) or 0
    reason = os.strerror(number) if number > 0 else str(error)
    do = "choose another --port (0 takes a free one) or --host"
    return InvalidInput.of("address", "be free to listen on", f"{host} port {port}", where=reason, do=do)


def unusable_socket(path: Path, error: OSError) -> InvalidInput:
    """Return the error of a server that cannot listen on a Unix socket."""
    do = "choose a path of at most 100 characters in a folder that exists and that you can write to"
    return InvalidInput.of("Unix socket", "be free to listen on", str(path), where=error.strerror or str(error), do=do)


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
