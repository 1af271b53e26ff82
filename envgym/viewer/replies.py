"""The replies of the viewer: JSON and files, with headers that keep pages from running or loading anything else."""

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from envgym.core.json_types import well_formed
from envgym.runtime.http.server import HttpReply

HEADERS: Final[Mapping[str, str]] = MappingProxyType({
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
})  # fmt: skip
"""Of every reply."""


def json_reply(content: Any, status: HTTPStatus = HTTPStatus.OK) -> HttpReply:  # any JSON
    """Return a reply in JSON: a number that is not finite is null, and lone surrogates of a text are replaced."""
    try:
        text = _dump(content)
    except ValueError:
        text = _dump(_finite(content))
    return HttpReply(status, well_formed(text).encode(), headers=HEADERS)


def error_reply(status: HTTPStatus, detail: str) -> HttpReply:
    """Return a reply of one sentence."""
    return json_reply({"detail": detail}, status)


def file_reply(text: str, subtype: str) -> HttpReply:
    """Return a text file, such as one of the subtype `html`."""
    return HttpReply(HTTPStatus.OK, text.encode(), f"text/{subtype}; charset=utf-8", HEADERS)


def _dump(content: Any) -> str:  # any JSON
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _finite(content: Any) -> Any:  # any JSON
    if isinstance(content, Mapping):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
