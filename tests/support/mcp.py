"""What tests of `tools/mcp-v0` share: what they need, and random calls."""

from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np
import pytest

from envgym.envs.tools._mcp.servers.protocol import Json, McpServer, input_schema
from envgym.sandbox import BwrapSandbox, why_unusable

NO_SANDBOX = why_unusable(BwrapSandbox())
NEEDS_MCP = pytest.mark.skipif(
    find_spec("mcp") is None or NO_SANDBOX is not None, reason=f"needs envgym[mcp] and a sandbox: {NO_SANDBOX}"
)
SESSIONS: Mapping[str, tuple[str, ...]] = {
    "files": ("start_editing", "stop_editing"),
    "calendar": ("open_calendar", "close_calendar"),
    "shop": ("sign_in", "sign_out", "add_to_cart", "remove_from_cart"),
    "knowledge": ("start_draft", "discard_draft", "add_line", "remove_line"),
}
"""Server -> tools that change the session alone."""
_WORDS = ("", "/", "a", "/notes/a.txt", "2026-09-07", "09:00", "Room Oak", "archive", "e\ud800\n")


def random_call(server: McpServer, rng: np.random.Generator, among: tuple[str, ...] = ()) -> tuple[str, Json]:
    """Return a call of a tool that is offered, with ids of records or with other values, some of a wrong type."""
    tools = [tool for tool in server.listed() if not among or tool["name"] in among]
    tool = tools[rng.integers(len(tools))]
    known = [key for table in server.tables.values() for key in table]
    values: list[object] = [*known, *_WORDS, *range(-1, 5), None, 1.5, True]
    properties = input_schema(tool)["properties"]
    arguments: Json = {}
    for key, schema in properties.items():
        fitting = list(range(1, 4)) if schema["type"] == "integer" else known
        chosen = fitting if rng.random() < 0.7 and fitting else values
        arguments[key] = chosen[rng.integers(len(chosen))]
    return tool["name"], arguments
