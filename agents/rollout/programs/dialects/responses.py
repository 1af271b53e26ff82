"""OpenAI's Responses without state of a server: earlier responses of the session may be named, nothing else is kept."""

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from itertools import count
from typing import Final

from envgym.agents.rollout.programs.calls import Call, CallReply, ReplyFinish
from envgym.agents.rollout.programs.dialects.base import (
    CONTEXT_FULL,
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
    read_tool_choice,
    reading,
    refused,
)
from envgym.agents.rollout.programs.dialects.chat import openai_error
from envgym.chats.fields import Json, is_absent
from envgym.chats.openai import read_tools
from envgym.chats.responses import read_items, write_items
from envgym.core.json_types import JsonObject
from envgym.core.messages import Message, Role

_UNKNOWN: Final = ("conversation", "background", "prompt", "logit_bias", "top_logprobs", "context_management")
"""Options that need a server's state, or change what is sampled from."""


class ResponsesDialect:
    """Responses. Temperature and top-p are those of the run, whatever a request asks for."""

    name = "responses"
    path = "/responses"
    count_path = None
    has_transcripts = True

    def read(self, body: Json, *, refuses: bool, transcripts: Transcripts) -> CallRequest:
        """Read a request; an earlier response stands for its conversation without the standing instructions.

        Raises: InvalidInput: it cannot be answered.
        """
        check_absent(body, _UNKNOWN)
        tools = read_tool_choice(body, reading(read_tools, body.get("tools") or [], where=REQUEST))
        ignored = [] if is_absent(_format_of(body)) or _format_of(body) == {"type": "text"} else ["text.format"]
        if tools and not is_absent(body.get("tool_choice")) and body["tool_choice"] != "auto":
            ignored.append("tool_choice")
        standing = _instructions(body.get("instructions"))
        specs = {spec.name: spec for spec in tools}
        items = reading(read_items, body.get("input") or [], where="input", tools=specs)
        messages = (*standing, *_earlier(body.get("previous_response_id"), transcripts), *items)
        if not messages:
            raise refused("input", "be a text or a list of at least one item", body.get("input"))
        return CallRequest(
            call=Call(messages=messages, tools=tools, max_tokens=read_max_tokens(body, "max_output_tokens")),
            num_standing=len(standing),
            model=read_model(body),
            is_streamed=read_flag(body, "stream"),
            ignored=check_refusals(tuple(ignored), refuses=refuses),
        )

    def write(self, request: CallRequest, reply: CallReply, ids: ReplyIds) -> JsonObject:
        return self._response(request, reply, ids, _output(reply.message, ids))

    def write_events(self, request: CallRequest, reply: CallReply, ids: ReplyIds) -> Iterator[bytes]:
        """Write the beginning, each item with its parts, and the whole response."""
        numbers = count()
        output = _output(reply.message, ids)
        whole = self._response(request, reply, ids, output)
        begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        kind = "response.completed" if reply.finish is not ReplyFinish.LENGTH else "response.incomplete"
        items = (item for index, entry in enumerate(output) for item in _item_events(index, entry))
        for name, data in (
            ("response.created", {"response": begun}),
            ("response.in_progress", {"response": begun}),
            *items,
            (kind, {"response": whole}),
        ):
            yield event({"type": name, "sequence_number": next(numbers), **data}, name)

    def write_error(self, status: HTTPStatus, detail: str, *, is_context_full: bool) -> JsonObject:
        return openai_error(status, detail, is_context_full=is_context_full)

    def write_error_event(self, status: HTTPStatus, detail: str, *, is_context_full: bool) -> bytes:
        del status  # the format has no place for it
        code = CONTEXT_FULL if is_context_full else "server_error"
        data = {"type": "error", "code": code, "message": detail, "param": None, "sequence_number": 0}
        return event(data, "error")

    def response_id(self, ids: ReplyIds) -> str:
        return f"resp_{ids.number}"

    def _response(self, request: CallRequest, reply: CallReply, ids: ReplyIds, output: list[Json]) -> Json:
        is_cut = reply.finish is ReplyFinish.LENGTH
        return {
            "id": self.response_id(ids),
            "object": "response",
            "created_at": ids.created,
            "status": "incomplete" if is_cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": None,
            "max_output_tokens": request.call.max_tokens,
            "metadata": {},
            "model": request.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": reply.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": reply.prompt_tokens + reply.completion_tokens,
            },
        }


def _format_of(body: Json) -> object:
    text = body.get("text")
    return text.get("format") if isinstance(text, dict) else None


def _instructions(value: object) -> tuple[Message, ...]:
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (Message(role=Role.SYSTEM, content=value),)
    return reading(read_items, value, where="instructions")


def _earlier(response_id: object, transcripts: Transcripts) -> tuple[Message, ...]:
    if response_id is None:
        return ()
    messages = transcripts.get(response_id) if isinstance(response_id, str) else None
    if messages is None:
        raise refused("previous_response_id", "name a response of this session", response_id)
    return messages


def _output(message: Message, ids: ReplyIds) -> list[Json]:
    """Return the items of a reply, each with an id and a state."""
    names = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
    return [
        {"id": f"{names[item['type']]}_{ids.number}_{index}", "status": "completed", **item}
        for index, item in enumerate(write_items(message))
    ]


def _item_events(index: int, item: Json) -> Iterable[tuple[str, Json]]:
    """Yield the events of an item: its beginning, its text or arguments as one piece, and its end."""
    place: Json = {"output_index": index}
    where = {**place, "item_id": item["id"]}
    empty = {**item, "status": "in_progress"}
    match item["type"]:
        case "message":
            yield "response.output_item.added", {**place, "item": {**empty, "content": []}}
            for number, part in enumerate(item["content"]):
                yield from _text_events({**where, "content_index": number}, part)
        case "function_call":
            yield "response.output_item.added", {**place, "item": {**empty, "arguments": ""}}
            arguments = item["arguments"]
            yield "response.function_call_arguments.delta", {**where, "delta": arguments}
            yield "response.function_call_arguments.done", {**where, "name": item["name"], "arguments": arguments}
        case _:
            yield "response.output_item.added", {**place, "item": {**empty, "content": []}}
            for number, part in enumerate(item["content"]):
                spot = {**where, "content_index": number}
                yield "response.reasoning_text.delta", {**spot, "delta": part["text"]}
                yield "response.reasoning_text.done", {**spot, "text": part["text"]}
    yield "response.output_item.done", {**place, "item": item}


def _text_events(where: Json, part: Json) -> Iterable[tuple[str, Json]]:
    yield "response.content_part.added", {**where, "part": {**part, "text": ""}}
    yield "response.output_text.delta", {**where, "delta": part["text"], "logprobs": []}
    yield "response.output_text.done", {**where, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**where, "part": part}
