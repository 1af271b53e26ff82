"""The server's end of the Model Context Protocol over standard input and output: JSON-RPC 2.0, one message a line.

Revision 2025-11-25 of the protocol: `initialize`, `ping`, `tools/list`, `tools/call` and the notification
`notifications/tools/list_changed`, which is sent before the answer to the call that caused it. Two methods of our own,
declared under `capabilities.experimental`, set and return all that a server holds; tools cannot reach them.

Standard library only: this module and the servers run inside sandboxes. The environment imports them as well, to draw
tasks.
"""

import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

Json = dict[str, Any]  # decoded JSON
Tables = dict[str, dict[str, Json]]
"""Table -> id -> record."""

REVISION = "2025-11-25"
STATE_EXTENSION = "envgym/state"
LOAD_STATE, SAVE_STATE = "envgym/load_state", "envgym/save_state"
PARSE_ERROR, UNKNOWN_METHOD, INVALID_PARAMS = -32700, -32601, -32602
MAX_TEXT = 4000
"""Characters of an argument, unless its schema says otherwise."""
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


class Refusal(Exception):
    """A tool cannot do what it was asked; the message is the tool's result, marked as an error."""


class InvalidParams(Exception):
    """A request names no tool, or one that is not offered now."""


class McpServer:
    """The records of a server, the session that a client has with it, and its tools as methods."""

    name: ClassVar[str]
    graded: ClassVar[tuple[str, ...]]
    """Tables that tasks are about; a session ends without a trace."""

    def __init__(self, tables: Tables, session: Json | None = None) -> None:
        """Hold `tables`, which are changed in place, in a new session unless one is given."""
        self.tables = tables
        self.session: Json = session if session is not None else self.new_session()

    def new_session(self) -> Json:
        """Return the session of a client that has called nothing."""
        return {}

    def groups(self) -> frozenset[str]:
        """Return the groups of tools that the session offers, besides those that it always does."""
        return frozenset()

    def listed(self) -> Iterator[Json]:
        """Yield the tools that can be called now, as the file beside the server describes them."""
        groups = self.groups()
        return (tool for tool in tools_of(self.name).values() if tool.get("group") is None or tool["group"] in groups)

    def call(self, name: str, arguments: Json) -> Any:  # JSON
        """Run a tool. Raises: Refusal: it cannot be done. InvalidParams: the tool is not offered now."""
        tool = next((tool for tool in self.listed() if tool["name"] == name), None)
        if tool is None:
            raise InvalidParams(f"There is no tool {name!r:.100} now.")
        if problem := find_problem(input_schema(tool), arguments):
            raise Refusal(f"{name} was not run: {problem}.")
        method: Callable[..., Any] = getattr(self, name)
        return method(**arguments)

    def new_id(self, table: str, letter: str) -> str:
        """Return the id of a new record, one more than the highest."""
        return f"{letter}{max((int(key[1:]) for key in self.tables[table]), default=100) + 1}"

    def find(self, table: str, key: str, what: str) -> Json:
        """Return a record. Raises: Refusal: there is none."""
        record = self.tables[table].get(key)
        if record is None:
            raise Refusal(f"There is no {what} {key!r:.100}.")
        return record


@cache
def _read_catalogue(name: str) -> Json:
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


@cache
def tools_of(name: str) -> Mapping[str, Json]:
    """Return the tools of a server by name, those of all groups."""
    return {tool["name"]: tool for tool in _read_catalogue(name)["tools"]}


def input_schema(tool: Json) -> Json:
    """Return the JSON schema of a tool's arguments."""
    properties, optional = tool.get("arguments", {}), tool.get("optional", [])
    required = [key for key in properties if key not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def find_problem(schema: Json, arguments: Json) -> str:
    """Return the problem with the arguments of a call, as a phrase; empty if there is none."""
    properties: Json = schema["properties"]
    hint = f"; the arguments are {', '.join(properties)}" if properties else "; it has no arguments"
    if stray := next((key for key in arguments if key not in properties), None):
        return f"there is no argument {stray!r:.100}{hint}"
    if absent := next((key for key in schema["required"] if key not in arguments), None):
        return f"the argument {absent!r} is missing{hint}"
    return next(filter(None, (_value_problem(key, properties[key], value) for key, value in arguments.items())), "")


def _value_problem(key: str, schema: Json, value: object) -> str:
    kind, got = schema["type"], f"got {value!r:.100}"
    is_bool = isinstance(value, bool) and kind != "boolean"
    if is_bool or not isinstance(value, _TYPES[kind]):
        return f"the argument {key!r} must be of type {kind}, {got}"
    if "enum" in schema and value not in schema["enum"]:
        return f"the argument {key!r} must be one of {', '.join(schema['enum'])}, {got}"
    if isinstance(value, str) and len(value) > schema.get("maxLength", MAX_TEXT):
        return f"the argument {key!r} must have at most {schema.get('maxLength', MAX_TEXT)} characters"
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        low, high = schema.get("minimum", "any"), schema.get("maximum", "any")
        return f"the argument {key!r} must lie between {low} and {high}, {got}"
    return ""


# ---- messages -----------------------------------------------------------------------------------------------------


class McpEndpoint:
    """Answers the messages of one client."""

    def __init__(self, kind: type[McpServer]) -> None:
        """Serve an empty server until a state is loaded."""
        self._kind = kind
        self._server = kind({table: {} for table in kind.graded})

    def answer(self, line: bytes) -> Iterator[Json]:
        """Yield the messages that follow a message: notifications, then the response to a request."""
        try:
            message = json.loads(line)
            method, params = message["method"], message.get("params") or {}
        except (ValueError, KeyError, TypeError):
            yield _failed(None, PARSE_ERROR, "The message must be a JSON-RPC request on one line.")
            return
        if "id" not in message:
            return
        before = self._server.groups()
        handler = _HANDLERS.get(method)
        if handler is None:
            yield _failed(message["id"], UNKNOWN_METHOD, f"There is no method {method!r:.100}.")
            return
        try:
            response = {"jsonrpc": "2.0", "id": message["id"], "result": handler(self, params)}
        except InvalidParams as error:
            response = _failed(message["id"], INVALID_PARAMS, str(error))
        if self._server.groups() != before:
            yield {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        yield response

    def initialize(self, params: Json) -> Json:
        return {
            "protocolVersion": REVISION,
            "capabilities": {"tools": {"listChanged": True}, "experimental": {STATE_EXTENSION: {}}},
            "serverInfo": {"name": self._kind.name, "version": "1.0.0"},
            "instructions": _read_catalogue(self._kind.name)["instructions"],
        }

    def ping(self, params: Json) -> Json:
        return {}

    def list_tools(self, params: Json) -> Json:
        return {
            "tools": [
                {
                    "name": tool["name"],
                    "description": tool["description"],
                    "inputSchema": input_schema(tool),
                    "annotations": {"readOnlyHint": tool.get("reads", False)},
                }
                for tool in self._server.listed()
            ]
        }

    def call_tool(self, params: Json) -> Json:
        """Run a tool; a refusal is a result. Raises: InvalidParams: the tool is not offered now."""
        try:
            result, is_error = self._server.call(params["name"], params.get("arguments") or {}), False
        except Refusal as refusal:
            result, is_error = str(refusal), True
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        return {"content": [{"type": "text", "text": text}], "isError": is_error}

    def load_state(self, params: Json) -> Json:
        self._server = self._kind(params["state"]["tables"], params["state"]["session"])
        return {}

    def save_state(self, params: Json) -> Json:
        return {"state": {"tables": self._server.tables, "session": self._server.session}}


_HANDLERS: Mapping[str, Callable[[McpEndpoint, Json], Json]] = {
    "initialize": McpEndpoint.initialize,
    "ping": McpEndpoint.ping,
    "tools/list": McpEndpoint.list_tools,
    "tools/call": McpEndpoint.call_tool,
    LOAD_STATE: McpEndpoint.load_state,
    SAVE_STATE: McpEndpoint.save_state,
}


def _failed(number: object, code: int, message: str) -> Json:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def serve(kind: type[McpServer]) -> None:
    """Answer messages on standard input until it ends."""
    endpoint = McpEndpoint(kind)
    for line in sys.stdin.buffer:
        for message in endpoint.answer(line):
            sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
