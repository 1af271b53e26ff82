"""What a file can hold: the one JSON type, the canonical form for content hashes, well-formed and visible text."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

from pydantic_core import from_json

JsonValue = None | bool | int | float | str | list["JsonValue"] | Mapping[str, "JsonValue"]
JsonObject = Mapping[str, JsonValue]


def canonical(value: JsonValue) -> str:
    """Write a JSON value in the one form that equal values share: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_hash(value: JsonValue) -> str:
    """Return the SHA-256 of the canonical form, 64 hex digits."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def is_json(value: object) -> bool:
    """Return whether a value is JSON of UTF-8 text, so that it has a canonical form."""
    try:
        canonical(cast(JsonValue, value)).encode()  # which refuses what is none
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def is_well_formed(text: str) -> bool:
    """Tell whether a text holds no lone surrogate, which neither UTF-8 nor a tokenizer has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def well_formed(text: str) -> str:
    """Return `text` with lone surrogates replaced by U+FFFD."""
    return text if is_well_formed(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_PART = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{,:]', re.DOTALL)
"""A string, or what stands before a value."""


def parse_json(text: bytes | str, max_parts: int) -> JsonValue:
    """Decode JSON that anybody may have written, where it has few strings, brackets, commas and colons.

    A value takes up to 30 times the memory of its text; so the parts are counted first.

    Raises: ValueError: it is no JSON, nested too deep, or of more than `max_parts` parts.
    """
    text = text if isinstance(text, str) else text.decode()
    if next(islice(_PART.finditer(text), max_parts, None), None) is not None:
        raise ValueError(f"more than {max_parts} parts")
    try:
        value: JsonValue = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return value


def decode_recorded(text: str) -> Any:  # JSON; the records that are built from it check it
    """Decode JSON that this project wrote as `json.loads` does, but faster. Raises: ValueError: it is no JSON."""
    try:
        return from_json(text)
    except ValueError:  # lone surrogates and deep nesting, which only `json` reads
        return json.loads(text)


def visible(text: str) -> str:
    """Return `text` with what a terminal would obey, or what hides other text, written as in JSON: ESC is \\u001b.

    Those are control characters but line feed and tab, marks of direction and other invisible ones, lone surrogates.
    JSON stays the same JSON.
    """
    if text.isprintable():
        return text
    return "".join(char if _is_shown(char) else json.dumps(char)[1:-1] for char in text)


_JOINERS = "\u200c\u200d"
"""Invisible, and part of words and emoji."""


def _is_shown(char: str) -> bool:
    return char.isprintable() or char in "\n\t" or char in _JOINERS or unicodedata.category(char) == "Zs"
