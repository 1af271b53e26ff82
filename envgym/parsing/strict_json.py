"""JSON from a model, read only where it can mean one thing."""

import json
import math
from collections import Counter

from envgym.core.json_types import JsonValue, is_well_formed

MAX_DEPTH = 64
"""Deeper nesting is refused: it could be read but not always written again."""


_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}


def read_json(text: str) -> JsonValue:
    """Read `text`, which holds one JSON value. Raises: ValueError: one clause that says what is wrong."""
    value, end = read_json_at(text, 0)
    rest = text[end:].strip()
    if rest:
        raise ValueError(f"there is text after the JSON value: {rest[:40]!r}")
    return value


def read_json_at(text: str, start: int) -> tuple[JsonValue, int]:
    """Read the JSON value that begins at `start` (spaces skipped); return it and where it ends.

    Line breaks inside strings are accepted; duplicate keys, NaN, infinities, lone surrogates and deep nesting are not.
    Raises: ValueError: one clause that says what is wrong.
    """
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        line, column = (
            text.count("\n", start, error.pos) + 1,
            error.pos - max(text.rfind("\n", start, error.pos) + 1, start),
        )
        literal = next((name for name in _PYTHON_LITERALS if text.startswith(name, error.pos)), None)
        hint = f" (write {_PYTHON_LITERALS[literal]} instead of {literal})" if literal else ""
        raise ValueError(f"{error.msg} at line {line}, column {column + 1}{hint}") from None
    except RecursionError:
        raise ValueError(f"the nesting is deeper than {MAX_DEPTH}") from None
    brackets = text.count("{", start, end) + text.count("[", start, end)
    if brackets > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError(f"the nesting is deeper than {MAX_DEPTH}")
    if text.find("\\u", start, end) >= 0 and not is_well_formed(json.dumps(value, ensure_ascii=False)):
        raise ValueError("a \\u escape is half of a surrogate pair")
    return value, end


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    result = dict(pairs)
    if len(result) < len(pairs):
        double = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {double[:40]!r} is written twice")
    return result


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _int(text: str) -> int:
    if len(text) > 1000:
        raise ValueError(f"the number {text[:40]}... has {len(text)} digits")
    return int(text)


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_int=_int, parse_constant=_constant, strict=False
)


def _depth(value: JsonValue) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    return depth
