"""OpenAI's chat completions, the format that most libraries speak."""

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

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
    read_stop,
    read_tool_choice,
    reading,
    refused,
)
from envgym.chats.fields import Json, is_absent
from envgym.chats.openai import call_to_wire, read_openai, read_tools
from envgym.core.json_types import JsonObject
from envgym.core.messages import Message
from envgym.tools import ToolSpec

_SHAPING: Final = (
    "logit_bias",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "structured_outputs",
    "grammar",
    "json_schema",
    "regex",
    "ebnf",
    "allowed_token_ids",
    "bad_words",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "continue_final_message",
    "echo",
    "prompt_logprobs",
    "functions",
    "function_call",
    "web_search_options",
    "audio",
    "prediction",
)
"""Options that change what is sampled from, or what a reply holds. Log-probs would be those of another distribution."""
_FINISH: Final = {
    ReplyFinish.STOP: "stop",
    ReplyFinish.LENGTH: "length",
    ReplyFinish.TOOL_CALLS: "tool_calls",
}
DONE: Final = b"data: [DONE]\n\n"


class ChatDialect:
    """Chat completions. Temperature, top-p, seed and penalties are those of the run, whatever a request asks for."""

    name = "chat"
    path = "/chat/completions"
    count_path = None
    has_transcripts = False

    def read(self, body: Json, *, refuses: bool, transcripts: Transcripts) -> CallRequest:
        """Read a request. Raises: InvalidInput: it cannot be answered."""
        del transcripts  # this format always sends the whole conversation
        check_absent(body, _SHAPING)
        if body.get("n") not in (None, 1):
            raise refused("n", "be 1", body["n"])
        if body.get("top_logprobs"):
            raise refused("top_logprobs", "be 0: only the sampled tokens have log-probs", body["top_logprobs"])
        if not is_absent(body.get("modalities")) and body["modalities"] != ["text"]:
            raise refused("modalities", "be text", body["modalities"])
        tools = read_tool_choice(body, reading(read_tools, body.get("tools") or [], where=REQUEST))
        ignored = [name for name in ("response_format",) if _shapes_text(body.get(name))]
        if tools and not is_absent(body.get("tool_choice")) and body["tool_choice"] != "auto":
            ignored.append("tool_choice")
        options = body.get("stream_options")
        return CallRequest(
            call=Call(
                messages=read_messages(body.get("messages"), tools),
                tools=tools,
                max_tokens=read_max_tokens(body, "max_completion_tokens", "max_tokens"),
                stop=read_stop(body.get("stop"), "stop"),
            ),
            model=read_model(body),
            is_streamed=read_flag(body, "stream"),
            has_usage=isinstance(options, dict) and bool(options.get("include_usage")),
            has_logprobs=read_flag(body, "logprobs"),
            ignored=check_refusals(tuple(ignored), refuses=refuses),
        )

    def write(self, request: CallRequest, reply: CallReply, ids: ReplyIds) -> JsonObject:
        message: Json = {"role": "assistant", "content": _content(reply.message), "refusal": None}
        if reply.message.thinking:
            message["reasoning_content"] = reply.message.thinking
        if reply.message.tool_calls:
            message["tool_calls"] = [call_to_wire(call) for call in reply.message.tool_calls]
        choice: Json = {
            "index": 0,
            "message": message,
            "logprobs": _logprobs(reply) if request.has_logprobs else None,
            "finish_reason": _FINISH[reply.finish],
        }
        return {**self._head(request, ids, "chat.completion"), "choices": [choice], "usage": usage(reply)}

    def write_events(self, request: CallRequest, reply: CallReply, ids: ReplyIds) -> Iterator[bytes]:
        """Write the content, then each call, the reason of the end, and the numbers of tokens if they are wanted."""
        head = self._head(request, ids, "chat.completion.chunk")
        if request.has_usage:
            head["usage"] = None
        first: Json = {"role": "assistant", "content": _content(reply.message)}
        if reply.message.thinking:
            first["reasoning_content"] = reply.message.thinking
        yield self._chunk(head, first, _logprobs(reply) if request.has_logprobs else None)
        for index, call in enumerate(reply.message.tool_calls):
            yield self._chunk(head, {"tool_calls": [{"index": index, **call_to_wire(call)}]})
        yield self._chunk(head, {}, finish=_FINISH[reply.finish])
        if request.has_usage:
            yield event({**head, "choices": [], "usage": usage(reply)})
        yield DONE

    def write_error(self, status: HTTPStatus, detail: str, *, is_context_full: bool) -> JsonObject:
        return openai_error(status, detail, is_context_full=is_context_full)

    def write_error_event(self, status: HTTPStatus, detail: str, *, is_context_full: bool) -> bytes:
        return event(openai_error(status, detail, is_context_full=is_context_full))

    def response_id(self, ids: ReplyIds) -> str:
        return f"chatcmpl-{ids.number}"

    def _head(self, request: CallRequest, ids: ReplyIds, kind: str) -> Json:
        return {"id": self.response_id(ids), "object": kind, "created": ids.created, "model": request.model}

    def _chunk(self, head: Json, delta: Json, logprobs: Json | None = None, finish: str | None = None) -> bytes:
        choice: Json = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**head, "choices": [choice]})


def read_messages(value: object, tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
    """Read the messages of a request. Raises: InvalidInput: there is none, or one cannot be read."""
    if not isinstance(value, list) or not value:
        raise refused("messages", "be a list of at least one message", value)
    specs = {spec.name: spec for spec in tools}
    return tuple(
        reading(read_openai, message, where=f"messages[{index}]", tools=specs) for index, message in enumerate(value)
    )


def usage(reply: CallReply) -> Json:
    """Write the numbers of tokens of a reply."""
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def openai_error(status: HTTPStatus, detail: str, *, is_context_full: bool) -> Json:
    """Write an error as OpenAI's APIs do."""
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    code = CONTEXT_FULL if is_context_full else None
    return {"error": {"message": detail, "type": kind, "param": None, "code": code}}


def _content(message: Message) -> str | None:
    return message.content or (None if message.tool_calls else "")


def _logprobs(reply: CallReply) -> Json | None:
    if not reply.logprobs:
        return None
    pairs = zip(reply.token_strings, reply.logprobs, strict=True)
    return {"content": [_token_logprob(text, logprob) for text, logprob in pairs], "refusal": None}


def _token_logprob(text: str, logprob: float) -> dict[str, Any]:  # JSON
    return {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace")), "top_logprobs": []}


def _shapes_text(response_format: object) -> bool:
    return not is_absent(response_format) and response_format != {"type": "text"}
