"""The tools of the env for a program, which calls them from Python or over MCP's streamable HTTP, without a session.

Of MCP a server of tools needs four methods, so that no package is: `initialize`, `ping`, `tools/list`, `tools/call`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple

from envgym.chats.fields import Json, plain_json
from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.version import __version__
from envgym.errors import EnvgymError
from envgym.parsing.strict_json import read_json
from envgym.runtime.http.server import AnyReply, HttpReply, HttpRequest
from envgym.tools import ToolSpec

MCP_PATH: Final = "/mcp"
_REVISIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Of the protocol, the newest first; a client that asks for another one is offered the newest."""
_PARSE_ERROR, _INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS = -32700, -32600, -32601, -32602


class ToolReply(NamedTuple):
    """What a call of a tool shows."""

    text: str
    is_error: bool = False


CallTool = Callable[[str, JsonObject], Awaitable[ToolReply]]
"""Calls a tool of the env by name and arguments, in the event loop of the session."""


@dataclass(frozen=True, slots=True)
class EnvTools:
    """The tools of the env of one episode."""

    specs: tuple[ToolSpec, ...]
    call: CallTool


def answer_mcp(tools: EnvTools, request: HttpRequest) -> AnyReply | Awaitable[AnyReply]:
    """Answer an HTTP request of an MCP client."""
    if request.method != "POST":  # the server begins no messages, and there is no session to end
        return HttpReply(HTTPStatus.METHOD_NOT_ALLOWED, b"", headers={"allow": "POST"})
    try:
        message = read_json(request.body.decode())
    except (ValueError, RecursionError) as error:
        return HttpReply.of_json(_error(None, _PARSE_ERROR, f"The body is no JSON: {error}"), HTTPStatus.BAD_REQUEST)
    if not isinstance(message, dict) or not isinstance(message.get("method"), str | None):
        refusal = _error(None, _INVALID_REQUEST, "The body must be one JSON-RPC message.")
        return HttpReply.of_json(refusal, HTTPStatus.BAD_REQUEST)
    if "method" not in message or "id" not in message:  # a reply or a notification
        return HttpReply(HTTPStatus.ACCEPTED, b"")
    if message["method"] == "tools/call":
        return asyncio.ensure_future(_call(tools, message))
    return HttpReply.of_json(_answer(tools, message))


def _answer(tools: EnvTools, message: Json) -> JsonObject:
    match message["method"]:
        case "initialize":
            return _result(message, _greeting(_params(message)))
        case "ping":
            return _result(message, {})
        case "tools/list":
            return _result(message, {"tools": [_listed(spec) for spec in tools.specs]})
        case method:
            return _error(message["id"], _NO_METHOD, f"There is no method {method}.")


def _greeting(params: Mapping[str, JsonValue]) -> JsonObject:
    requested = params.get("protocolVersion")
    return {
        "protocolVersion": requested if requested in _REVISIONS else _REVISIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "envgym", "version": __version__},
    }


def _listed(spec: ToolSpec) -> JsonObject:
    return {"name": spec.name, "description": spec.description, "inputSchema": plain_json(spec.parameters)}


async def _call(tools: EnvTools, message: Json) -> AnyReply:
    params = _params(message)
    name, arguments = params.get("name"), params.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        detail = "The parameters must be a name and an object of arguments."
        return HttpReply.of_json(_error(message["id"], _INVALID_PARAMS, detail))
    try:
        reply = await tools.call(name, arguments)
    except EnvgymError as error:
        reply = ToolReply(str(error), is_error=True)
    content: JsonValue = [{"type": "text", "text": reply.text}]
    return HttpReply.of_json(_result(message, {"content": content, "isError": reply.is_error}))


def _params(message: Json) -> Json:
    params = message.get("params")
    return params if isinstance(params, dict) else {}


def _result(message: Json, result: JsonObject) -> JsonObject:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _error(id: JsonValue, code: int, detail: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": detail}}
