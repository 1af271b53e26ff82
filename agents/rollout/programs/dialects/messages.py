"""Anthropic's Messages."""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

from envgym.agents.rollout.programs.calls import Call, CallReply, ReplyFinish
from envgym.agents.rollout.programs.dialects.base import (
    REQUEST,
    CallRequest,
    ReplyIds,
    Transcripts,
    check_absent,
    check_refusals,
    event,
    read_flag,
    read_max_tokens,
    read_model,
    read_stop,
    reading,
    refused,
)
from envgym.chats.anthropic import read_anthropic, read_anthropic_tools, read_system, write_blocks
from envgym.chats.fields import Json, is_absent
from envgym.chats.openai import read_tools
from envgym.core.json_types import JsonObject, JsonValue

_UNKNOWN: Final = ("mcp_servers", "container", "context_management")
"""Options that need a server's tools or state."""
_STOP_REASONS: Final = {
    ReplyFinish.STOP: "end_turn",
    ReplyFinish.LENGTH: "max_tokens",
    ReplyFinish.TOOL_CALLS: "tool_use",
}
_ERRORS: Final = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
}
_FULL: Final = "prompt is too long: "
"""How the programs that shorten their context recognize a full one."""


class MessagesDialect:
    """Messages. Temperature, top-p and top-k are those of the run, whatever a request asks for."""

    name = "messages"
    path = "/messages"
    count_path = "/messages/count_tokens"
    has_transcripts = False

    def read(self, body: Json, *, refuses: bool, transcripts: Transcripts) -> CallRequest:
        """Read a request. Raises: InvalidInput: it cannot be answered."""
        del transcripts  # this format always sends the whole conversation
        check_absent(body, _UNKNOWN)
        choice = _kind_of(body.get("tool_choice"), "tool_choice")
        tools = reading(
            read_tools, reading(read_anthropic_tools, body.get("tools") or [], where=REQUEST), where=REQUEST
        )
        if choice == "none":
            tools = ()
        ignored = [name for name in ("output_format", "output_config") if not is_absent(body.get(name))]
        if tools and choice not in (None, "auto"):
            ignored.append("tool_choice")
        listed = body.get("messages")
        if not isinstance(listed, list) or not listed:
            raise refused("messages", "be a list of at least one message", listed)
        specs = {spec.name: spec for spec in tools}
        entries = (
            reading(read_anthropic, entry, where=f"messages[{index}]", tools=specs)
            for index, entry in enumerate(listed)
        )
        system = reading(read_system, body.get("system"), where="system")
        return CallRequest(
            call=Call(
                messages=(*system, *(message for messages in entries for message in messages)),
                tools=tools,
                max_tokens=read_max_tokens(body, "max_tokens"),
                stop=read_stop(body.get("stop_sequences"), "stop_sequences"),
            ),
            model=read_model(body),
            is_streamed=read_flag(body, "stream"),
            ignored=check_refusals(tuple(ignored), refuses=refuses),
        )

    def write(self, request: CallRequest, reply: CallReply, ids: ReplyIds) -> JsonObject:
        return {
            **self._head(request, reply, ids),
            "content": write_blocks(reply.message),
            "stop_reason": _STOP_REASONS[reply.finish],
            "usage": _usage(reply),
        }

    def write_events(self, request: CallRequest, reply: CallReply, ids: ReplyIds) -> Iterator[bytes]:
        """Write the beginning, each block as one piece, and the reason of the end."""
        head = self._head(request, reply, ids)
        yield _event("message_start", message={**head, "content": [], "usage": _usage(reply, num_sampled=0)})
        for index, block in enumerate(write_blocks(reply.message)):
            yield from _block_events(index, block)
        delta: Json = {"stop_reason": _STOP_REASONS[reply.finish], "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=_usage(reply))
        yield _event("message_stop")

    def write_error(self, status: HTTPStatus, detail: str, *, is_context_full: bool) -> JsonObject:
        kind = _ERRORS.get(
            status, "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
        )
        return {"type": "error", "error": {"type": kind, "message": _FULL * is_context_full + detail}}

    def write_error_event(self, status: HTTPStatus, detail: str, *, is_context_full: bool) -> bytes:
        return event(self.write_error(status, detail, is_context_full=is_context_full), "error")

    def response_id(self, ids: ReplyIds) -> str:
        return f"msg_{ids.number}"

    def _head(self, request: CallRequest, reply: CallReply, ids: ReplyIds) -> Json:
        return {
            "id": self.response_id(ids),
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "stop_reason": None,
            "stop_sequence": None,
        }


def _kind_of(value: object, name: str) -> object:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise refused(name, "be an object", value)
    return value.get("type")


def _usage(reply: CallReply, num_sampled: int | None = None) -> Json:
    """Write the numbers of tokens; those of the context without the ones that a cache gave."""
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": reply.completion_tokens if num_sampled is None else num_sampled,
    }


def _event(name: str, **data: JsonValue) -> bytes:
    return event({"type": name, **data}, name)


def _block_events(index: int, block: Json) -> Iterator[bytes]:
    match block["type"]:
        case "text":
            empty, deltas = {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "tool_use":
            arguments = json.dumps(block["input"], ensure_ascii=False)
            empty, deltas = {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
        case _:
            empty = {**block, "thinking": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
    yield _event("content_block_start", index=index, content_block=empty)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)
