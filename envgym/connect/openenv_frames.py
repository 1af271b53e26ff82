"""Text frames of OpenEnv's WebSocket protocol, read into frozen records and written from them. No I/O.

A client sends `{"type": ..., "data": {...}}` of type reset, step, state, mcp or close. A server answers each but close
with one frame of type observation, state, mcp or error.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final

from envgym.core.json_types import JsonObject, parse_json
from envgym.core.messages import Action, ToolCall
from envgym.core.tasks import Split
from envgym.core.turns import as_number
from envgym.errors import EnvFailure, InvalidInput

RESERVED_TOOLS: Final = frozenset({"reset", "step", "state", "close"})
"""Names that the protocol does not allow for tools."""
TOKEN_VARIABLE: Final = "ENVGYM_OPENENV_TOKEN"
"""The environment variable with the token that a server demands and a client sends."""
MAX_FRAME_BYTES: Final = 16 << 20
_MAX_PARTS: Final = 1_000_000
_SMALL_CHARS: Final = 64 << 10
"""A frame up to this length is decoded without counting its parts first."""
_MAX_ID_CHARS: Final = 255
_MAX_MESSAGE_CHARS: Final = 2000
"""Of the text of an error that a server sends."""
_CALL_TOOL, _LIST_TOOLS = "call_tool", "list_tools"

Json = dict[str, Any]  # JSON that was just decoded, or is about to be encoded


class ErrorCode(StrEnum):
    """Code of an error frame."""

    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    CAPACITY_REACHED = "CAPACITY_REACHED"
    FACTORY_ERROR = "FACTORY_ERROR"
    SESSION_ERROR = "SESSION_ERROR"


class RpcCode(IntEnum):
    """Code of a JSON-RPC error, inside a frame of type mcp."""

    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    SERVER_ERROR = -32000


class FrameError(InvalidInput):
    """A frame that cannot be answered; its code tells the client why."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.VALIDATION_ERROR) -> None:
        super().__init__(message)
        self.code = code


class RpcError(InvalidInput):
    """A JSON-RPC request that cannot be answered."""

    def __init__(
        self, message: str, code: RpcCode = RpcCode.INVALID_PARAMS, request_id: str | int | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.request_id = code, request_id


# ---- frames of a client ----------------------------------------------------------------------------------------------


class Query(StrEnum):
    """A frame without arguments."""

    LIST_TOOLS = "list_tools"
    STATE = "state"
    CLOSE = "close"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Start an episode."""

    seed: int | None = None
    episode_id: str | None = None
    """A name that the client chose."""
    split: Split | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """Play a turn."""

    action: str
    """A plain `str` still has to be parsed for tool calls; an `Action` carries its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTool:
    """Play a turn that calls one tool."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """A JSON-RPC request of the Model Context Protocol."""

    method: str
    params: JsonObject
    id: str | int | None


Frame = Query | Reset | Act | CallTool | Rpc


def read_frame(text: str) -> Frame:
    """Read a frame of a client.

    Raises: FrameError: it is no JSON object, of an unknown type, or one of its fields is. RpcError: its request is bad.
    """
    fields = _object(decode(text), "frame")
    kind = fields.get("type")
    if kind not in ("reset", "step", "state", "mcp", "close"):
        error = _bad("type of a frame", "be reset, step, state, mcp or close", kind)
        raise FrameError(str(error), ErrorCode.UNKNOWN_TYPE)
    has_data = kind in ("reset", "step", "mcp")
    _check_names(fields, ("type", "data") if has_data else ("type",), f"{kind} frame")
    if not has_data:
        return Query(kind)
    data = _object(fields.get("data", {}), f"data of a {kind} frame")
    return _READERS[kind](data)


def read_reset(value: object) -> Reset:
    """Read the data of a reset. Raises: FrameError: a field is unknown, or has a wrong value."""
    data = _object(value, "data of a reset")
    _check_names(data, ("seed", "episode_id", "split", "index"), "reset")
    episode_id, split = data.get("episode_id"), data.get("split")
    if episode_id is not None and not (isinstance(episode_id, str) and len(episode_id) <= _MAX_ID_CHARS):
        raise _bad("episode_id", f"be a text of at most {_MAX_ID_CHARS} characters", episode_id)
    if split is not None and split not in tuple(Split):
        raise _bad("split", "be train or test", split)
    return Reset(
        seed=_natural(data, "seed"),
        episode_id=episode_id,
        split=None if split is None else Split(split),
        index=_natural(data, "index"),
    )


def _read_step(data: Json) -> Query | Act | CallTool:
    """Read an action. Its `metadata`, which typed clients always send, has no meaning."""
    kind = data.get("type")
    if kind == _LIST_TOOLS:
        _check_names(data, ("type", "metadata"), _LIST_TOOLS)
        return Query.LIST_TOOLS
    if kind == _CALL_TOOL:
        _check_names(data, ("type", "metadata", "tool_name", "arguments"), _CALL_TOOL)
        name, arguments = _text(data, "tool_name"), _object(data.get("arguments", {}), "arguments")
        return CallTool(name=name, arguments=arguments)
    _check_names(data, ("text", "tool_calls", "metadata"), "action")
    text, calls = _text(data, "text"), data.get("tool_calls")
    if not calls and (calls is None or isinstance(calls, list)):
        return Act(text)
    if not isinstance(calls, list):
        raise _bad("tool_calls", "be a list", calls)
    return Act(Action(text, tool_calls=tuple(map(_read_call, calls))))


def _read_call(data: object) -> ToolCall:
    fields = _object(data, "tool call")
    _check_names(fields, ("name", "arguments", "id"), "tool call")
    call_id = fields.get("id")
    if call_id is not None and not isinstance(call_id, str):
        raise _bad("id of a tool call", "be a text", call_id)
    return ToolCall(name=_text(fields, "name"), arguments=_object(fields.get("arguments", {}), "arguments"), id=call_id)


def read_rpc(data: object) -> Rpc:
    """Read a JSON-RPC request. Raises: RpcError: it is none."""
    fields = data if isinstance(data, dict) else {}
    request_id, params = fields.get("id"), fields.get("params", {})
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | None):
        request_id = None
    if fields.get("jsonrpc") != "2.0" or not isinstance(fields.get("method"), str):
        error = _bad("request", "be JSON-RPC 2.0 with a method", data)
        raise RpcError(str(error), RpcCode.INVALID_REQUEST, request_id)
    if not isinstance(params, dict):
        raise RpcError(str(_bad("params", "be an object", params)), request_id=request_id)
    return Rpc(method=fields["method"], params=params, id=request_id)


_READERS: Final = {"reset": read_reset, "step": _read_step, "mcp": read_rpc}


# ---- frames of a server ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The answer to a reset or a step."""

    observation: Json
    reward: float | None
    """None: the server paid nothing, or does not say."""
    done: bool


def observation_frame(observed: Observed) -> str:
    """Write the answer to a reset or a step."""
    return encode({"type": "observation", "data": observation_data(observed)})


def observation_data(observed: Observed) -> Json:
    """Return the JSON form of an answer to a reset or a step."""
    return {"observation": observed.observation, "reward": observed.reward, "done": observed.done}


def state_frame(state: Json) -> str:
    """Write the answer to a state frame."""
    return encode({"type": "state", "data": state})


def error_frame(message: str, code: ErrorCode) -> str:
    """Write an error."""
    return encode({"type": "error", "data": {"message": message, "code": code.value}})


def rpc_frame(answer: Json) -> str:
    """Write the answer to a frame of type mcp."""
    return encode({"type": "mcp", "data": answer})


def rpc_result(request: Rpc, result: Json) -> Json:
    """Return the answer to a JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": request.id, "result": result}


def rpc_failure(error: RpcError) -> Json:
    """Return the answer to a JSON-RPC request that cannot be answered."""
    return {"jsonrpc": "2.0", "id": error.request_id, "error": {"code": error.code.value, "message": str(error)}}


class ErrorReply(EnvFailure):
    """An error frame that a server sent."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def read_observed(text: str, *, where: str) -> Observed:
    """Read the answer of a server to a reset or a step.

    Raises: ErrorReply: an error frame. EnvFailure: another form. `where` names the server.
    """
    try:
        fields = _object(decode(text), "frame")
        kind, data = fields.get("type"), _object(fields.get("data"), "data of a frame")
        if kind == "error":
            code = str(data.get("code"))
            raise ErrorReply(f"{where} answered: {_error_message(data)} ({code})", code=code)
        if kind != "observation":
            raise _bad("frame type", "be observation", kind)
        return _read_observed(data)
    except FrameError as error:
        must, do = "have the form of OpenEnv's protocol", "check which server answers at this address"
        raise EnvFailure.of("answer", must, str(error), where=where, do=do) from error


def _error_message(data: Json) -> str:
    """Return the message of an error; one about fields also names each of them."""
    details = data.get("errors")
    errors = [item for item in details if isinstance(item, dict)] if isinstance(details, list) else []
    parts = [f"{'.'.join(map(str, item.get('loc') or ()))}: {item.get('msg')}" for item in errors]
    return "; ".join([str(data.get("message")), *parts])[:_MAX_MESSAGE_CHARS]


def _read_observed(data: Json) -> Observed:
    reward, done = data.get("reward"), data.get("done", False)
    number = as_number(reward)
    if reward is not None and number is None:
        raise _bad("reward", "be a number or null", reward)
    if not isinstance(done, bool):
        raise _bad("done", "be true or false", done)
    return Observed(observation=_object(data.get("observation", {}), "observation"), reward=number, done=done)


# ---- JSON ------------------------------------------------------------------------------------------------------------


def encode(value: Json) -> str:
    """Write JSON. Raises: TypeError: a value has no form in JSON."""
    return json.dumps(value, separators=(",", ":"))


def decode(text: str) -> object:
    """Read JSON that anybody may have written. Raises: FrameError: it is none, or too deep or large."""
    try:
        return parse_json(text, _MAX_PARTS) if len(text) > _SMALL_CHARS else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(str(_bad("frame", "be JSON", str(error))), ErrorCode.INVALID_JSON) from error


def _object(value: object, what: str) -> Json:
    if not isinstance(value, dict):
        raise _bad(what, "be an object", value)
    return value


def _check_names(fields: Mapping[str, object], names: tuple[str, ...], what: str) -> None:
    if unknown := [name for name in fields if name not in names]:
        raise _bad(f"fields of {what}", f"be among {', '.join(names)}", ", ".join(unknown))


def _text(fields: Json, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _bad(name, "be a text", value)
    return value


def _natural(fields: Json, name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise _bad(name, "be a whole number from 0", value)
    return value


def _bad(what: str, must: str, got: object) -> FrameError:
    return FrameError.of(what, must, got, where="OpenEnv frame", do="send what GET /schema describes")
