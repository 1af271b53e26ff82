"""Tools as Python functions of other projects: names, type hints, and docstrings in Google's form, from JSON schemas.

The inverse of `envgym.core.signatures`. A schema that type hints cannot express becomes `dict` or `list`, and its words
are in the docstring.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from envgym.core.json_types import JsonObject, JsonValue
from envgym.errors import InvalidInput
from envgym.tools import ToolSpec

_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
_SECTION = re.compile(r"\b(Args|Returns|Raises|choices):")
"""Words that begin a section for readers of Google's form; in the text of a tool they are only words."""

Receiver = Callable[[Any, str, JsonObject], str]
"""`receive(self, tool, arguments)` runs a call of a method of `self`."""


def method_of(spec: ToolSpec, receive: Receiver) -> Callable[..., str]:
    """Return a method that passes its arguments to `receive`, with the signature and docstring of a tool.

    Arguments that are not passed do not reach the tool; a wrong or unknown one does, and is answered there.

    Raises: InvalidInput: the tool or one of its arguments has a name that Python cannot write.
    """

    def method(self: object, /, **arguments: Any) -> str:  # as the model wrote them
        return receive(self, spec.name, arguments)

    if not spec.name.isidentifier():
        do = "rename the tool, or leave it out"
        raise InvalidInput.of("tool", "have a name that Python can write", spec.name, where="connect", do=do)
    properties = _properties(spec.parameters)
    required = spec.parameters.get("required")
    names = required if isinstance(required, list | tuple) else ()
    hints = {name: type_hint(schema, spec.parameters) for name, schema in properties.items()}
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for name, hint in hints.items():
        default = inspect.Parameter.empty if name in names else _default_of(properties[name])
        try:
            parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        except ValueError as error:
            must, do = "have a name that Python can write", "rename the argument, or leave the tool out"
            raise InvalidInput.of(f"argument of {spec.name}", must, name, where="connect", do=do) from error
        parameters.append(parameter)
    method.__name__ = method.__qualname__ = spec.name
    method.__doc__ = docstring(spec)
    method.__annotations__ = {**hints, "return": str}
    method.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]  # inspect reads it
    return method


def docstring(spec: ToolSpec) -> str:
    """Return the words of a tool in Google's form: what it does, and each argument in one line."""
    lines = [_words(spec.description) or f"Call {spec.name}."]
    properties = _properties(spec.parameters)
    if properties:
        lines += ["", "Args:"]
        lines += [
            f"    {name}: {_argument_words(name, schema, spec.parameters)}" for name, schema in properties.items()
        ]
    return "\n".join(lines)


def type_hint(schema: JsonValue, root: JsonObject) -> Any:  # a type hint
    """Return the type hint of a JSON schema; `root` has the definitions that it refers to."""
    schema = _resolved(schema, root)
    options = schema.get("enum")
    if "const" in schema:
        options = [schema["const"]]
    if isinstance(options, list | tuple) and options and all(isinstance(x, str | int | bool | None) for x in options):
        return Literal[tuple(options)]
    variants = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(variants, list | tuple) and variants:
        return Union[tuple(type_hint(item, root) for item in variants)]  # noqa: UP007  # of a tuple
    kind = schema.get("type")
    if isinstance(kind, list | tuple) and kind:
        return Union[tuple(_TYPES.get(str(item), Any) for item in kind)]  # noqa: UP007  # of a tuple
    if kind == "array" and schema.get("items"):
        return list[type_hint(schema["items"], root)]  # type: ignore[misc]  # a hint that is made at run time
    return _TYPES.get(str(kind), Any)


def _argument_words(name: str, schema: JsonValue, root: JsonObject) -> str:
    """Describe an argument; what a type hint does not say of its schema follows as JSON."""
    resolved = _resolved(schema, root)
    description = resolved.get("description")
    words = _words(description if isinstance(description, str) else "") or f"The argument {name}."
    rest = {key: value for key, value in resolved.items() if key not in ("description", "title", "default", "examples")}
    if _is_told_by_hint(rest, root):
        return words
    definitions = root.get("$defs", root.get("definitions"))
    if definitions and "$ref" in json.dumps(rest):
        rest = {**rest, "$defs": definitions}
    return f"{words} JSON schema: {_words(json.dumps(rest, ensure_ascii=False))}"


def _is_told_by_hint(schema: JsonObject, root: JsonObject) -> bool:
    """Return whether the type hint says all that a schema does."""
    schema = _resolved(schema, root)
    variants = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(variants, list | tuple):
        return schema.keys() <= {"anyOf", "oneOf"} and all(_is_told_by_hint(_mapping(x), root) for x in variants)
    if schema.get("type") == "array" and schema.get("items"):
        return schema.keys() <= {"type", "items"} and _is_told_by_hint(_mapping(schema["items"]), root)
    return schema.keys() <= {"type", "enum", "const"}


def _resolved(schema: JsonValue, root: JsonObject) -> JsonObject:
    """Return a schema with a reference into the definitions of `root` followed once."""
    mapping = _mapping(schema)
    reference = mapping.get("$ref")
    if not isinstance(reference, str):
        return mapping
    definitions = _mapping(root.get("$defs", root.get("definitions", {})))
    target = _mapping(definitions.get(reference.rpartition("/")[2], {}))
    return {**target, **{key: value for key, value in mapping.items() if key != "$ref"}}


def _mapping(value: JsonValue) -> JsonObject:
    return value if isinstance(value, Mapping) else {}


def _properties(parameters: JsonObject) -> JsonObject:
    return _mapping(parameters.get("properties", {}))


def _default_of(schema: JsonValue) -> object:
    return _mapping(schema).get("default")


def _words(text: str) -> str:
    """Return a text on one line in which no word begins a section."""
    return _SECTION.sub(r"\1 -", " ".join(text.split()))


def check_names(specs: Sequence[ToolSpec], reserved: Sequence[str], *, where: str) -> None:
    """See that no tool has a name that a door reserves. Raises: InvalidInput: one has, or begins with an underscore."""
    for spec in specs:
        if spec.name in reserved or spec.name.startswith("_"):
            must = f"not be {', '.join(reserved)}, nor begin with an underscore"
            raise InvalidInput.of("name of a tool", must, spec.name, where=where, do="rename the tool of the env")
