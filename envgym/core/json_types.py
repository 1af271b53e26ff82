"""The one JSON type, and the canonical form that content hashes are taken of."""

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
