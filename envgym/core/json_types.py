"""What a file can hold: the one JSON type, the canonical form that content hashes are taken of, well-formed text."""

import hashlib
import json
from collections.abc import Mapping

JsonValue = None | bool | int | float | str | list["JsonValue"] | Mapping[str, "JsonValue"]
JsonObject = Mapping[str, JsonValue]


def canonical(value: JsonValue) -> str:
    """Write a JSON value in the one form that equal values share: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_hash(value: JsonValue) -> str:
    """Return the SHA-256 of the canonical form, 64 hex digits."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def well_formed(text: str) -> str:
    """Return `text` with lone surrogates, which neither UTF-8 nor a tokenizer has, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
