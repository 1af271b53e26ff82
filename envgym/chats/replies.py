"""Replies of chat services, in the shapes in which they send them: an assistant message as an action, and refusals.

Services agree on no code and no wording for a conversation that is too long for the model's context. A refusal counts
as one if its own words say that the prompt, with or without the room for the reply, does not fit the context. Rate
limits and a limit of the reply that is out of range do not count.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from envgym.core.messages import Action, ToolCall
from envgym.parsing import parse_action
from envgym.parsing.call_forms import read_arguments
from envgym.parsing.formats import THINK_OPEN, split_thinking


class BadResponse(ValueError):
    """The body is not what the protocol promises."""


def get_nested(body: object, *keys: str) -> object:
    """Return the value in nested JSON objects under some keys; None where one is missing."""
    for key in keys:
        body = body.get(key) if isinstance(body, Mapping) else None
    return body


def first_choice(body: object) -> Any:  # JSON
    """Return the first choice of a response. Raises: BadResponse: a clause that says what is missing."""
    choices = field_of(body, "choices", list, "the response")
    if not choices:
        raise BadResponse("the response holds no choice")
    return choices[0]


def field_of(holder: object, key: str, kind: type, where: str) -> Any:  # checked here
    """Return a field of a type. Raises: BadResponse: a clause that says what is missing."""
    value = get_nested(holder, key)
    if not isinstance(value, kind):
        raise BadResponse(f"{where} holds no {key}")
    return value


CONTEXT_FULL: Final = ("model_context_window_exceeded", "context_length_exceeded")
_CUT = ("length", "max_tokens", "model_length", "MAX_TOKENS", *CONTEXT_FULL)
"""Reasons for which a reply ended that mean that it was cut."""
_FAILED = ("error", "abort", "network_error")
"""Reasons that mean that the service broke."""


def is_cut(choice: object) -> bool:
    """Return whether the reply of a choice was cut. Raises: BadResponse: a clause that says that it broke off."""
    finish = get_nested(choice, "finish_reason")
    if finish in _FAILED:
        raise BadResponse(f"the reply ended with {finish}")
    return finish in _CUT


# ---- the assistant message as an action ------------------------------------------------------------------------------

_THINKING = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
"""Keys of a message under which services put its thinking."""
_THINKING_PARTS = ("thinking", "reasoning", "redacted_thinking", "reasoning.text", "reasoning.summary")
_TEXT_KEYS = ("text", "thinking", "content", "summary", "refusal")
"""Keys of a part under which its text is, which may be a list of parts again."""
_MAX_DEPTH = 4


def read_message(message: Mapping[str, Any], *, has_tools: bool) -> Action:
    """Read a message. Raises: BadResponse: a clause that says what cannot be read.

    Thinking may be a field of its own, a part of the content, or marked inside the text. Calls that a service could
    not read stay in the text: with `has_tools` they are read there.
    """
    content, part_thinking = _read_content(message.get("content"))
    thinking = next((text for key in _THINKING if (text := _text_of(message.get(key)))), part_thinking)
    calls, malformed, written = _read_calls(_listed_calls(message))
    content = content or _text_of(message.get("refusal"))
    text = "\n".join([*([content] if content else []), *(line for line, _ in written)])
    if not written and has_tools:
        left = parse_action(content or f"{THINK_OPEN}\n{thinking}") if content or thinking else Action()
        if left.tool_calls or left.malformed:
            calls = [
                ToolCall(name=call.name, arguments=call.arguments, id=f"call_{index}")
                for index, call in enumerate(left.tool_calls)
            ]
            thought = left.thinking if left.thinking is not None else thinking
            content = split_thinking(content)[1] if left.malformed else left.content
            return Action(text, content=content, thinking=thought or None, tool_calls=calls, malformed=left.malformed)
    if not thinking:
        marked, content = split_thinking(content)
        thinking = marked or ""
    # a call that cannot be read is shown in later turns, so that the model sees what it did wrong
    parts = [content, *(line for line, is_read in written if not is_read)]
    content = "\n".join(part for part in parts if part)
    return Action(text, content=content, thinking=thinking or None, tool_calls=calls, malformed=malformed)


def _read_content(content: object) -> tuple[str, str]:
    """Return (text, thinking) of a content: a text, nothing, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise BadResponse("the content is no text")
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("tool_use", "tool_call", "function"):
            continue
        text = _text_of(part)
        if not text and kind not in (None, "text", "output_text", "reference", "refusal", *_THINKING_PARTS):
            raise BadResponse(f"the content holds a part of type {kind}")
        (thoughts if kind in _THINKING_PARTS else texts).append(text)
    return "".join(texts), "\n".join(filter(None, thoughts))


def _text_of(value: object, depth: int = 0) -> str:
    if isinstance(value, str) or depth > _MAX_DEPTH:
        return value if isinstance(value, str) else ""
    if isinstance(value, list):
        return "".join(_text_of(item, depth + 1) for item in value)
    if isinstance(value, Mapping):
        return next((text for key in _TEXT_KEYS if (text := _text_of(value.get(key), depth + 1))), "")
    return ""


def _listed_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the calls in the protocol's form: of the message, of its older form, and of its content."""
    listed = message.get("tool_calls") or []
    if not isinstance(listed, list):
        raise BadResponse("the tool calls are no list")
    if not listed and isinstance(message.get("function_call"), Mapping):
        listed = [{"function": message["function_call"]}]
    parts = message.get("content")
    if not listed and isinstance(parts, list):
        listed = [
            {"id": part.get("id"), "function": {"name": part.get("name"), "arguments": part.get("input")}}
            for part in parts
            if isinstance(part, Mapping) and part.get("type") == "tool_use"
        ]
    return listed


def _read_calls(items: Sequence[Mapping[str, Any]]) -> tuple[list[ToolCall], list[str], list[tuple[str, bool]]]:
    """Return the calls, the reasons of those that cannot be read, and the text of each with whether it was read."""
    calls: list[ToolCall] = []
    malformed: list[str] = []
    written: list[tuple[str, bool]] = []
    for index, item in enumerate(items):
        function = field_of(item, "function", dict, "the tool call")
        name, arguments = function.get("name"), function.get("arguments")
        text = f"{name}({arguments})"
        try:
            if not isinstance(name, str) or not name:
                raise ValueError("the name of the tool is missing")
            call_id = item.get("id") or f"call_{index}"
            calls.append(ToolCall(name=name, arguments=read_arguments(arguments), id=str(call_id)))
            written.append((text, True))
        except ValueError as error:
            malformed.append(f"The arguments of a call of {name} could not be read: {error}. Write one JSON object.")
            written.append((text, False))
    return calls, malformed, written


# ---- refusals of a conversation that is too long ---------------------------------------------------------------------

_STATUSES = frozenset({200, 400, 413, 422, 500})
"""Statuses with which services report a full context: some report it as an error of the server, or inside a success."""
_TOO_LARGE = 413
_MAX_CHARS = 4000
_ECHOES = frozenset({"input", "messages", "body", "request"})
"""Keys under which a body repeats what was sent."""

_RATE = re.compile(
    r"rate.?limit|\bper (?:second|sec|minute|min|hour|day)\b|\b[tr]p[md]\b|quota|too many requests|throttl|overloaded"
    r"|please wait|billing|credits"
)
_GAP = r"(?:[^.;:]|\.\d){0,80}"
"""Also the rest of a word. No repetition here is without a bound: a search is linear in what a service sends."""
_FULL = re.compile(
    rf"context[ _-]?(?:length|window|size|limit)[ _:](?:has been )?(?:exceed|overflow|is full)|context{_GAP}overflow"
    rf"|exceed{_GAP}\bcontext\b|exceed_context|prompt_too_long|max_prompt_tokens_exceeded"
    rf"|(?:longer|greater|larger|more) than{_GAP}\b(?:context|model|maximum) length"
    r"|max(?:imum|\.)?[ _](?:context|prompt|model|input)[ _](?:length|len|size|limit)"
    rf"|(?:prompt|inputs?|conversation|messages?|request){_GAP}\btoo (?:long|large)"
    rf"|(?:prompt|input|sequence) length{_GAP}exceed|(?:prompt|input){_GAP}\btoken (?:window|limit)"
    rf"|(?:prompt|inputs?|messages?|request){_GAP}exceed{_GAP}(?:\b|_)(?:tokens?|length)"
    rf"|\btokens?\b{_GAP}exceed{_GAP}limit|exceed\w{{0,4}} model token limit|(?<!output )tokens? limit exceeded"
    rf"|(?:prompt|input){_GAP}context (?:window|length|size)|messages?\[\d{{1,6}}\]\S{{0,80}}: string too long"
    r"|`inputs`(?: tokens \+ `max_new_tokens`)? must (?:be|have)|range of input length"
    r"|reduce (?:the length of )?(?:the|your) (?:messages|input|prompt|conversation)|too many tokens"
    r"|max_(?:completion_)?tokens must be at least 1, got -"
)
_LIMIT = re.compile(
    r"(?:context|prompt|model|input|allowed) (?:length|window|size|limit)(?: is| of|:)?(?: only)?[ (]*(\d+)"
    r"|(?:<=?|>|less than|limit of) ?(\d+)"
)


def is_context_full(status: int, body: object, max_new_tokens: int) -> bool:
    """Return whether a refusal says that the conversation does not fit the context.

    Args:
        status: Of the response.
        body: Decoded JSON, or text.
        max_new_tokens: Limit of the reply that was asked for. If it alone takes the whole context, the limit is at
            fault and no conversation would fit.
    """
    if status not in _STATUSES:
        return False
    text = " ; ".join(_texts(body))[:_MAX_CHARS].lower()
    if _RATE.search(text):
        return False
    if not _FULL.search(text):
        return status == _TOO_LARGE
    limits = [int(number) for match in _LIMIT.finditer(text) for number in match.groups() if number]
    stated = get_nested(body, "error", "n_ctx")
    limit = max([*limits, *([stated] if isinstance(stated, int) else [])], default=None)
    return limit is None or max_new_tokens < limit


def _texts(body: Any) -> Iterator[str]:  # JSON
    """Yield the texts of a body, except those that it repeats from the request."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, Mapping):
        for key, value in body.items():
            if key not in _ECHOES or isinstance(value, str):
                yield from _texts(value)
    elif isinstance(body, list):
        for item in body:
            yield from _texts(item)
