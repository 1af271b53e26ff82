"""Bodies of tool calls as models write them: JSON objects, Qwen3-Coder's parameter tags, Mistral's named arguments.

Every function reads at a place of a text and returns the calls with the place where the text continues. What cannot be
read raises a ValueError of one clause.
"""

import re
from collections.abc import Mapping, Sequence

from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.messages import ToolCall
from envgym.parsing.strict_json import read_json, read_json_at

_FENCE = re.compile(r"\s*```\w*\s*")
_NEXT_OBJECT = re.compile(r"\s*[,;]?\s*(?=\{)")
_KEYS = frozenset(("name", "arguments", "parameters", "id", "type", "tool_call_id"))
_MESSAGE_KEYS = frozenset(("role", "content", "tool_calls"))

_FUNCTION = re.compile(r"\s*<function=([^<>\n]{1,200})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,200})>")
_END_OF_VALUE = re.compile(r"</parameter>|(?=<parameter=|</function>|</tool_call>)")
_END_OF_FUNCTION = re.compile(r"\s*(?:</function>|(?=</tool_call>))")

_NAMED = re.compile(r"\s*([\w.-]{1,200})(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?=\{)")
_NEXT_NAMED = re.compile(r"\s*[\w.-]{1,200}(?:\[CALL_ID\][\w-]*)?\[ARGS\]\s*\{")

_PYTHONIC = re.compile(r"\s*\[\s*[A-Za-z_][\w.]*\((?:\)|\s*[A-Za-z_]\w*\s*=)")


# ---- JSON ----------------------------------------------------------------------------------------------------------


def read_calls(text: str, start: int) -> tuple[list[ToolCall], int]:
    """Read one call object, a list of them, or several in a row, within a code fence or not."""
    fence = _FENCE.match(text, start)
    value, end = read_json_at(text, fence.end() if fence else start)
    values: list[JsonValue] = [value]
    if not isinstance(value, list):
        while following := _NEXT_OBJECT.match(text, end):
            value, end = read_json_at(text, following.end())
            values.append(value)
    elif value:
        values = value
    else:
        raise ValueError("the list holds no call")
    return [read_call(item) for item in values], end


def read_call(value: JsonValue) -> ToolCall:
    """Read a decoded call object. Raises: ValueError: one clause that says what is wrong."""
    if not isinstance(value, Mapping):
        raise ValueError("a call must be one JSON object")
    if "name" not in value:
        value = _with_name(value)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError('the key "name" must hold the name of a tool')
    if not value.keys() <= _KEYS:
        stray = next(key for key in value if key not in _KEYS)
        raise ValueError(f'the key {stray[:40]!r} must stand inside "arguments"')
    if "arguments" in value and "parameters" in value:
        raise ValueError('"arguments" and "parameters" must not both be given')
    return ToolCall(name=name, arguments=read_arguments(value.get("arguments", value.get("parameters"))))


def _with_name(value: JsonObject) -> JsonObject:
    """Return a call whose name stands inside "function", as in OpenAI's API, or under "tool_name", as Cohere writes."""
    if isinstance(inner := value.get("function"), Mapping):
        value = {**{key: item for key, item in value.items() if key != "function"}, **inner}
    if "name" not in value and "tool_name" in value:
        value = {"name" if key == "tool_name" else key: item for key, item in value.items()}
    return value


def read_arguments(value: JsonValue) -> JsonObject:
    """Read the arguments of a call: an object, the JSON text of one, or nothing. Raises: ValueError."""
    if isinstance(value, str) and value.strip():
        value = read_json(value)
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        raise ValueError('"arguments" must hold a JSON object')
    return value


def read_bare_calls(text: str, form: str) -> tuple[Sequence[ToolCall], Sequence[str]]:
    """Read a message that is nothing but calls without tags, as Llama 3 writes them: (calls, reasons).

    It is one only if each object holds the name of a tool and its arguments, and no other key; any other JSON is an
    answer. Calls written as Python code are a reason.
    """
    if text.lstrip()[:1] not in ("{", "[", "`"):
        return (), ()
    if _PYTHONIC.match(text) and text.rstrip().endswith(")]"):
        return (), [f"A tool call could not be read: it is written as Python code. Write it as {form}."]
    try:
        fence = _FENCE.match(text)
        value, end = read_json_at(text, fence.end() if fence else 0)
        listed = value.get("tool_calls") if isinstance(value, Mapping) and _is_message(value) else value
        objects = listed if isinstance(listed, list) else [listed]
        is_call = bool(objects) and all(map(_has_form_of_call, objects))
        if not is_call:
            return (), ()
        if listed is value:
            calls, end = read_calls(text, 0)
        else:
            calls = [read_call(item) for item in objects]
    except ValueError:
        return (), ()
    return ((), ()) if text[end:].strip().strip("`").strip() else (calls, ())


def _is_message(value: Mapping[str, JsonValue]) -> bool:
    """Return True for a message of OpenAI's API that has calls and no content."""
    return "tool_calls" in value and _MESSAGE_KEYS.issuperset(value) and not value.get("content")


def _has_form_of_call(value: JsonValue) -> bool:
    if not isinstance(value, Mapping):
        return False
    inner = value.get("function")
    call = inner if isinstance(inner, Mapping) and "name" not in value else value
    return isinstance(call.get("name"), str) and ("arguments" in call or "parameters" in call)


# ---- Qwen3-Coder's tags --------------------------------------------------------------------------------------------


def read_functions(text: str, start: int) -> tuple[list[ToolCall], int]:
    """Read `<function=NAME>` with its parameters or one JSON object of arguments, and those that follow at once.

    A value is the raw text between its tags, a string, without the line breaks next to the tags.
    """
    calls: list[ToolCall] = []
    end = start
    while opening := _FUNCTION.match(text, end):
        arguments, end = _read_parameters(text, opening.end())
        calls.append(ToolCall(name=opening[1].strip().strip("\"'"), arguments=arguments))
    if not calls:
        raise ValueError("a function must begin with <function=NAME>")
    return calls, end


def _read_parameters(text: str, start: int) -> tuple[JsonObject, int]:
    """Read the parameters of a function up to its closing tag, which may be missing before that of the call."""
    arguments: dict[str, JsonValue] = {}
    end = start
    while opening := _PARAMETER.match(text, end):
        name, value_end = opening[1].strip().strip("\"'"), _END_OF_VALUE.search(text, opening.end())
        if value_end is None:
            raise ValueError(f"the parameter {name[:40]!r} is not closed with </parameter>")
        if name in arguments:
            raise ValueError(f"the parameter {name[:40]!r} is written twice")
        arguments[name] = text[opening.end() : value_end.start()].removeprefix("\n").removesuffix("\n")
        end = value_end.end()
    if not arguments and (value_start := _NEXT_OBJECT.match(text, end)):
        value, end = read_json_at(text, value_start.end())
        arguments = dict(read_arguments(value))
    closing = _END_OF_FUNCTION.match(text, end)
    if closing is None:
        raise ValueError(f"a function may hold only <parameter=NAME>, not {text[end : end + 40].strip()!r}")
    return arguments, closing.end()


# ---- Mistral's names -----------------------------------------------------------------------------------------------


def read_named_calls(text: str, start: int) -> tuple[list[ToolCall], int]:
    """Read what follows `[TOOL_CALLS]`: call objects, or names with their arguments: `NAME[ARGS]{...}`."""
    name = _NAMED.match(text, start)
    if name is None:
        return read_calls(text, start)
    calls: list[ToolCall] = []
    while name is not None:
        value, end = read_json_at(text, name.end())
        calls.append(ToolCall(name=name[1], arguments=read_arguments(value)))
        name = _NAMED.match(text, end) if _NEXT_NAMED.match(text, end) else None
    return calls, end
