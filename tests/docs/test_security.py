"""The page on security says the limits that the code has."""

import re
from pathlib import Path

import pytest

pytest.importorskip("bm25s")

from envgym.http_server import MAX_HEAD_BYTES, BoundedServer
from envgym.retrieval.http_client import TOKEN_VARIABLE
from envgym.retrieval.server import MAX_ANSWERS, MAX_BATCH, MAX_BODY_BYTES, MAX_REPLY_CHARS
from envgym.tools import MAX_RESULT_CHARS

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8").split())


def test_limits_are_those_of_the_code() -> None:
    server = BoundedServer
    for told in (
        f"{server.max_connections} connections",
        f"arrived {server.request_s:g} s after its first byte",
        f"an idle connection is closed after {server.idle_s:g} s",
        f"a reply must be taken within {server.reply_s:g} s",
        f"{MAX_HEAD_BYTES >> 10} KiB of headers, {MAX_BODY_BYTES >> 20} MiB of body, {MAX_BATCH} queries",
        f"replies of {MAX_REPLY_CHARS >> 20} million characters, {MAX_ANSWERS} of them worked on at a time",
        f"`max_chars` ({MAX_RESULT_CHARS:,} characters)",
        f"`${TOKEN_VARIABLE}`",
    ):
        assert told in PAGE, told


def test_what_is_named_is_there() -> None:
    root = Path(__file__).parents[2]
    for name in re.findall(r"`((?:constraints|scripts|docker)/[\w./]+\.\w+)`", PAGE):
        assert (root / name).exists(), name
