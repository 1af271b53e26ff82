"""Which calls answer a single-turn question: the rules of the leaderboard, argument by argument.

A call is right where its function is, where each argument has one of the possible values in the documented type, and
where only arguments are left out that may be. Texts are compared without case, spaces and , . / - _ * ^, at the top and
in lists and dictionaries; lists in their order. An integer is a right number for a float at the top alone. Where the
possible values have another type than the documented one (the name of a variable, for example), theirs counts, too.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.messages import ToolCall
from envgym.envs.tools._bfcl.source import CallQuestion, question
from envgym.tools import ToolSpec
from envgym.verifiers.tool_call import ExpectedCall

_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
"""Type in a document -> type of a value."""
_SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""Type in a document -> type in a JSON schema, where they differ."""
_LEFT_OUT = ""
"""What stands among the possible values of an argument that may be left out."""
_IGNORED = re.compile(r"[ ,./\-_*^]")


# ---- functions as tools -------------------------------------------------------------------------------------------


def tool_name(function: str) -> str:
    """Return the name under which a function is called: APIs take no dots."""
    return function.replace(".", "_")


def tool_spec(document: JsonObject) -> ToolSpec:
    name, description, parameters = (document[key] for key in ("name", "description", "parameters"))
    assert isinstance(parameters, Mapping), "checked when it was read"
    return ToolSpec(name=tool_name(str(name)), description=str(description), parameters=_schema(parameters))


def _schema(part: JsonObject) -> JsonObject:
    schema = {key: value for key, value in part.items() if key not in ("type", "optional")}
    kind = str(part.get("type", "any"))
    if kind != "any":
        schema["type"] = _SCHEMA_TYPES.get(kind, kind)
    if isinstance(properties := part.get("properties"), Mapping):
        schema["properties"] = {
            name: _schema(value) if isinstance(value, Mapping) else value for name, value in properties.items()
        }
    if isinstance(items := part.get("items"), Mapping):
        schema["items"] = _schema(items)
    return schema


# ---- expected calls -----------------------------------------------------------------------------------------------


@cache
def expected_calls(kind: str, name: str) -> tuple[ExpectedCall, ...]:
    """Return the calls that answer a single-turn question; none where no call is right."""
    item = question(kind, name)
    return tuple(_expected_call(item, answer) for answer in item.answers)


def _expected_call(item: CallQuestion, answer: JsonValue) -> ExpectedCall:
    document, values = _document_and_values(item, answer)
    properties, required = properties_of(document), _required(document)
    accepts: dict[str, Callable[[JsonValue], bool]] = dict.fromkeys([*required, *values], _never)
    for key, options in values.items():
        if key in properties:
            accepts[key] = _Accepts(properties[key], options)
    optional = frozenset(key for key, options in values.items() if _LEFT_OUT in options and key not in required)
    return ExpectedCall(name=tool_name(str(document["name"])), accepts=accepts, optional=optional)


@cache
def right_calls(kind: str, name: str) -> tuple[ToolCall, ...] | None:
    """Return calls that answer a single-turn question; None where its answer breaks its own rules."""
    item, calls = question(kind, name), []
    for answer, expected in zip(item.answers, expected_calls(kind, name), strict=True):
        _, values = _document_and_values(item, answer)
        arguments: dict[str, JsonValue] = {}
        for key, accepts in expected.accepts.items():
            options = [_concrete(option) for option in values.get(key, []) if option != _LEFT_OUT]
            right_options = [option for option in [*options, _LEFT_OUT] if accepts(option)]
            if right_options and (right_options[0] != _LEFT_OUT or key not in expected.optional):
                arguments[key] = right_options[0]
            elif key not in expected.optional:
                return None
        calls.append(ToolCall(name=expected.name, arguments=arguments))
    return tuple(calls)


def _document_and_values(item: CallQuestion, answer: JsonValue) -> tuple[JsonObject, Mapping[str, list[Any]]]:
    assert isinstance(answer, Mapping), "as the wheel's files are written"
    [(name, values)] = answer.items()
    assert isinstance(values, Mapping), "as the wheel's files are written"
    only_function = item.functions[0] if len(item.functions) == 1 else None
    document = only_function or next(function for function in item.functions if function["name"] == name)
    return document, values  # type: ignore[return-value]  # lists, as the wheel's files are written


def properties_of(document: JsonObject) -> Mapping[str, JsonObject]:
    """Return the arguments of a function, each with its document."""
    return document["parameters"]["properties"]  # type: ignore[index,call-overload,return-value]  # checked when read


def _required(document: JsonObject) -> list[str]:
    return document["parameters"].get("required", [])  # type: ignore[union-attr,return-value]  # checked when read


def _concrete(option: JsonValue) -> JsonValue:
    if isinstance(option, Mapping):
        parts = {key: values for key, values in option.items() if isinstance(values, list)}
        firsts = {key: next((value for value in values if value != _LEFT_OUT), None) for key, values in parts.items()}
        return {key: value for key, value in firsts.items() if value is not None}
    return [_concrete(part) for part in option] if isinstance(option, list) else option


# ---- values -------------------------------------------------------------------------------------------------------


def _never(value: JsonValue) -> bool:
    """Accept nothing: the argument is not documented, or its possible values are not known."""
    return False


class _Accepts:
    def __init__(self, schema: JsonObject, options: list[Any]) -> None:
        kind, items = str(schema["type"]), schema.get("items")
        self.options, self.is_float, self.outer = options, kind == "float", _TYPES[kind]
        self.inner = _TYPES[str(items["type"])] if self.outer is list and isinstance(items, Mapping) else None
        self.usual = _first_type(options)

    def __call__(self, value: Any) -> bool:
        if self.is_float and type(value) is int and abs(value) < 2**1000:
            value = float(value)
        is_usual = self.usual is not None and type(value) is self.usual
        if type(value) is not self.outer:
            return is_usual and value in self.options
        if isinstance(value, list) and not self._fits_inside(value):
            return False
        if self.usual is not None and self.usual is not self.outer:
            return value in self.options
        if self.outer is dict:
            return any(_is_dict(value, option) for option in self.options)
        if isinstance(value, list) and self.inner is dict:
            return any(len(value) == len(option) and all(map(_is_dict, value, option)) for option in self.options)
        if self.outer is str:
            return _normal(value) in [_normal(option) for option in self.options if isinstance(option, str)]
        if self.outer is list:
            return _normal_list(value) in [_normal_list(option) for option in self.options]
        return value in self.options

    def _fits_inside(self, value: list[Any]) -> bool:
        """Tell whether all items have the documented type, or that of the first item of a possible value."""
        types = [{self.inner, _first_type(option)} for option in self.options if isinstance(option, list)]
        has_loose = len(types) < len(self.options)  # "may be left out" among them: then any item passes
        return self.inner is None or has_loose or any(all(type(item) in some for item in value) for some in types)


def _first_type(options: list[Any]) -> type | None:
    return next((type(option) for option in options if option != _LEFT_OUT), None)


def _normal(value: Any) -> Any:
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def _normal_list(option: Any) -> list[Any]:
    return [_normal(part) for part in option] if isinstance(option, list | str) else [option]


def _is_dict(value: Any, option: Any) -> bool:
    if not isinstance(option, Mapping) or not isinstance(value, Mapping):
        return False
    is_accepted = all(key in option and _normal(part) in _normal_list(option[key]) for key, part in value.items())
    return is_accepted and all(_LEFT_OUT in parts for key, parts in option.items() if key not in value)
