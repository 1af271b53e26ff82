"""What the readers and writers of all chat forms share: absent values, texts, and refusals of one sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.messages import Message, Role, TextPart
from envgym.errors import InvalidInput
from envgym.parsing.strict_json import read_json

Json = dict[str, Any]  # whatever a row or the body of a request holds
REMEDY = "correct the row, or set on_bad_row: skip"


def refusal(what: str, must: str, got: object, where: str) -> InvalidInput:
    """Build the error of a row that cannot be read."""
    return InvalidInput.of(what, must, got, where=where, do=REMEDY)


def is_absent(value: object) -> bool:
    """Return whether a field counts as missing: data sets fill fields that a row lacks with null or something empty."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def present_fields(value: object, what: str, where: str) -> Json:
    """Return the fields of an object that are not absent. Raises: InvalidInput: it is no object."""
    if not isinstance(value, Mapping):
        raise refusal(what, "be an object", value, where)
    return {key: item for key, item in value.items() if not is_absent(item)}


def read_text(value: object, what: str, where: str) -> str:
    """Return a text. Raises: InvalidInput: the value is something else."""
    if not isinstance(value, str):
        raise refusal(what, "be text", value, where)
    return value


def read_role(value: object, roles: Mapping[str, Role], what: str, where: str) -> Role:
    """Return the role that a form calls so. Raises: InvalidInput: it has no such name."""
    role = roles.get(value) if isinstance(value, str) else None
    if role is None:
        raise refusal(what, f"be one of {', '.join(roles)}", value, where)
    return role


def read_list(value: object, what: str, where: str) -> Sequence[Any]:  # of whatever the row holds
    """Return a list, which may be written as JSON text. Raises: InvalidInput: the value is something else."""
    if isinstance(value, str):
        value = decode(value, what, where)
    if not isinstance(value, list | tuple):
        raise refusal(what, "be a list", value, where)
    return value


def decode(text: str, what: str, where: str) -> JsonValue:
    """Decode JSON. Raises: InvalidInput: the text is no JSON."""
    try:
        return read_json(text)
    except ValueError as error:
        raise refusal(what, "be JSON", f"{text} ({error})", where) from None


def text_parts(message: Message, form: str) -> tuple[TextPart, ...]:
    """Return the parts of a message. Raises: InvalidInput: one of them is no text."""
    parts = message.parts
    for part in parts:
        if not isinstance(part, TextPart):
            raise InvalidInput.of("message part", "be text", part.type, where=f"{form} form", do="leave the part out")
    return parts  # type: ignore[return-value]  # checked


def check_held(message: Message, again: Message, form: str) -> None:
    """Check that a message survives being written and read. Raises: InvalidInput: a part of it does not."""
    if again == message:
        return
    names = ("role", "parts", "thinking", "tool_calls", "tool_call_id", "name", "is_error")
    name = next(name for name in names if getattr(again, name) != getattr(message, name))
    must, got = "be one that the form can hold", repr(getattr(message, name))
    do = "leave it out, or choose another form"
    raise InvalidInput.of(f"{name} of the {message.role} message", must, got, where=f"{form} form", do=do)


def plain_json(value: JsonValue) -> Any:  # JSON in the dicts and lists that templates and json.dumps require
    """Return `value` with every mapping as a dict."""
    if isinstance(value, Mapping):
        return {key: plain_json(item) for key, item in value.items()}
    return [plain_json(item) for item in value] if isinstance(value, list | tuple) else value


_MAY_BE_NULL = ("default", "const", "example", "examples", "enum")
"""Keys of a JSON schema whose value may be null, or hold null."""


def without_nulls(schema: JsonValue) -> Any:  # JSON
    """Return a JSON schema without the null fields with which a data set fills the schemas of other rows."""
    if isinstance(schema, Mapping):
        items = schema.items()
        return {
            key: plain_json(item) if key in _MAY_BE_NULL else without_nulls(item)
            for key, item in items
            if item is not None or key == "const"
        }
    return [without_nulls(item) for item in schema] if isinstance(schema, list | tuple) else schema


def allows_null(schema: JsonValue) -> bool:
    """Return whether a JSON schema of an argument, if it is known, allows null."""
    if not isinstance(schema, Mapping):
        return False
    kind = schema.get("type")
    choices = [item for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list) for item in schema[key]]  # type: ignore[union-attr]  # checked
    names_null = "null" in kind if isinstance(kind, list) else kind in ("null", "any")
    is_open = kind is None and not choices and "enum" not in schema and "$ref" not in schema
    values = schema.get("enum")
    return (
        names_null
        or is_open
        or schema.get("nullable") is True
        or (isinstance(values, list) and None in values)
        or any(map(allows_null, choices))
    )


def arguments_of(arguments: JsonObject, parameters: JsonObject | None) -> Json:
    """Return the arguments of a call without nulls that the tool does not allow; all of them for an unknown tool."""
    if parameters is None:
        return {key: plain_json(item) for key, item in arguments.items()}
    listed = parameters.get("properties")
    schemas = listed if isinstance(listed, Mapping) else {}
    return {
        key: plain_json(item)
        for key, item in arguments.items()
        if item is not None or (key in schemas and allows_null(schemas[key]))
    }
