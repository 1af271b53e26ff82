"""What a settings file may hold: the keys of a model, each with type, default, range and description.

Everything is read from the JSON Schema of the model, so that a page, the command line and an editor say the same.
"""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError

Schema = Mapping[str, Any]  # JSON

REQUIRED: Final = "required"
"""Stands for the default of a key that has none."""
_TYPES: Final = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
    "array": "list",
    "object": "mapping",
}
_LIMITS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
    "minItems": "{} or more entries",
    "pattern": "matches `{}`",
}
_CHOICE: Final = "Choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingKey:
    """One key of a settings file."""

    key: str
    """Dotted path; 0 stands for the place in a list, NAME for a name of the user's."""
    type: str
    """What may stand there, in words."""
    default: str
    """As it is written in a file; `REQUIRED`: there is none; empty: that of a section is what its keys have."""
    range: str
    """Which values hold, in words; empty: all of the type."""
    description: str
    """The text of the field."""
    is_choice: bool
    """Whether it names a plug-in."""
    values: tuple[str, ...]
    """All values, where they can be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSection:
    """The keys of one model at one place of a settings file."""

    key: str
    """Where it stands; empty: at the top."""
    summary: str
    """First paragraph of the model's docstring."""
    keys: tuple[SettingKey, ...]


def read_sections(model: type[BaseModel], key: str = "") -> list[SettingSection]:
    """Return the keys of a model that stands at `key`, and of the models inside it; one in itself stands once."""
    schema = model.model_json_schema()
    name = _referred(schema)  # of a model that holds itself
    return list(_sections(schema, _resolved(schema, schema), key, () if name is None else (name,)))


def read_argument(parameter: inspect.Parameter, description: str) -> SettingKey:
    """Return the key that a keyword argument is, with what is known of its type."""
    try:
        schema = TypeAdapter(parameter.annotation).json_schema()
    except PydanticUserError:  # a type of Python alone
        schema = {}
    is_required = parameter.default is parameter.empty
    default = {} if is_required else {"default": parameter.default}
    return _key(schema, parameter.name, {**schema, **default, "description": description}, is_required=is_required)


def _sections(root: Schema, model: Schema, key: str, above: Sequence[str]) -> Iterator[SettingSection]:
    prefix = f"{key}." if key else ""
    properties: Schema = model.get("properties", {})
    keys = tuple(
        _key(root, f"{prefix}{name}", schema, is_required=name in model.get("required", ()))
        for name, schema in properties.items()
    )
    summary = " ".join(model.get("description", "").partition("\n\n")[0].split())
    yield SettingSection(key=key, summary=summary, keys=keys)
    for name, schema in properties.items():
        for place, inner in _inner_models(root, schema):
            if inner not in above:
                yield from _sections(root, root["$defs"][inner], f"{prefix}{name}{place}", (*above, inner))


def _inner_models(root: Schema, schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield where a value holds a section, `.0` in a list and `.NAME` in a mapping, and the name of its model."""
    for part in schema.get("anyOf", [schema]):
        for place, inner in (("", part), (".0", part.get("items", {})), (".NAME", part.get("additionalProperties"))):
            name = _referred(inner) if isinstance(inner, dict) else None
            if name is not None and name != _CHOICE and "properties" in root["$defs"][name]:
                yield place, name


def _referred(schema: Schema) -> str | None:
    reference: str | None = schema.get("$ref")
    return None if reference is None else reference.rpartition("/")[2]


def _key(root: Schema, key: str, schema: Schema, *, is_required: bool) -> SettingKey:
    parts = schema.get("anyOf", [schema])
    whole = [_resolved(root, part) for part in parts]
    return SettingKey(
        key=key,
        type=" or ".join(dict.fromkeys(_type(root, part) for part in parts)),
        default=REQUIRED if is_required else _default(schema, whole),
        range=", ".join(form.format(part[limit]) for part in whole for limit, form in _LIMITS.items() if limit in part),
        description=" ".join(schema.get("description", "").split()),
        is_choice=any(_CHOICE in (_referred(part), *map(_referred, _held(part))) for part in parts),
        values=tuple(map(_written, (value for part in whole for value in _values(part)))),
    )


def _resolved(root: Schema, schema: Schema) -> Schema:
    name = _referred(schema)
    return schema if name is None or name == _CHOICE else root["$defs"][name]


def _held(schema: Schema) -> list[Schema]:
    return [inner for name in ("items", "additionalProperties") if isinstance(inner := schema.get(name), dict)]


def _values(schema: Schema) -> list[object]:
    if schema.get("type") == "boolean":
        return [True, False]
    return list(schema.get("enum", [schema["const"]] if "const" in schema else []))


def _type(root: Schema, schema: Schema) -> str:
    if _referred(schema) == _CHOICE:
        return "plug-in"
    schema = _resolved(root, schema)
    if "properties" in schema:
        return "section"
    if "prefixItems" in schema:
        return "list of " + " and ".join(_type(root, part) for part in schema["prefixItems"])
    if "enum" in schema or "const" in schema:
        return " or ".join(map(_written, _values(schema)))
    kind: str = _TYPES.get(schema.get("type", ""), "any value")
    inner = _held(schema)
    return f"{kind} of {' or '.join(_plural(root, part) for part in inner)}" if inner else kind


def _plural(root: Schema, schema: Schema) -> str:
    word = _type(root, schema)
    return word if _values(_resolved(root, schema)) else f"{word}s"


def _default(schema: Schema, whole: Sequence[Schema]) -> str:
    """Return the default as it is written; that of a section is empty, unless it is null."""
    if "default" not in schema:
        return "{}" if whole[0].get("type") == "object" else "[]"
    value = schema["default"]
    return "" if value is not None and any("properties" in part for part in whole) else _written(value)


def _written(value: object) -> str:
    """Return a value as it is written in a settings file; a plug-in without settings as its name."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        if list(value) == ["name"]:
            return _written(value["name"])
        return f"{{{', '.join(f'{key}: {_written(item)}' for key, item in value.items())}}}"
    return json.dumps(value, default=str)
