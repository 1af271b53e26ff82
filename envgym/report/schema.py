"""The JSON form of `ReportData`, and its schema, whose published form is `schema.json` beside this module."""

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum

from pydantic import TypeAdapter

from envgym.core.json_types import JsonValue
from envgym.report.data import SCHEMA_VERSION, ReportData


def to_json(value: object) -> JsonValue:
    """Turn records, enums, mappings and tuples into plain JSON types; a float that is not finite becomes None."""
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(to_json(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    assert dataclasses.is_dataclass(value), f"{type(value).__name__} has no JSON form"
    return {item.name: to_json(getattr(value, item.name)) for item in dataclasses.fields(value)}


def build_schema() -> dict[str, JsonValue]:
    """Return the JSON schema of what `to_json` makes of a `ReportData`."""
    schema = TypeAdapter(ReportData).json_schema(mode="serialization")
    for record in (schema, *schema["$defs"].values()):
        if "properties" in record:
            # Every field is always written, and no other.
            record["required"] = sorted(record["properties"])
            record["additionalProperties"] = False
    schema["$comment"] = f"Schema version {SCHEMA_VERSION} of the data that report, tree view and app read."
    return schema


def schema_text() -> str:
    """Return the text of `schema.json`."""
    return json.dumps(build_schema(), indent=1, sort_keys=True) + "\n"
