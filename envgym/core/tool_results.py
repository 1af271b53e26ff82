"""What a tool returned, as text for the agent: JSON, with every usual Python value in a readable form.

Numbers of NumPy are numbers, dates are ISO 8601, sets are sorted lists, records (dataclasses, pydantic models,
plain objects) are objects, bytes are text. NaN and infinities are written as `NaN` and `Infinity`.
"""

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from itertools import islice
from typing import Any

import numpy as np
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

MAX_ITEMS = 20_000
"""Items shown of an iterator or an array; the text is cut long before."""
MAX_DEPTH = 40
"""Deeper values are shown as `...`."""

_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def as_text(result: object) -> str:
    """Return a tool's result as text: a string as it is, `Done.` for None, otherwise JSON."""
    if isinstance(result, str):
        return str(result.value) if isinstance(result, Enum) else str(result)
    if result is None:
        return "Done."
    with suppress(TypeError, ValueError, RecursionError):  # no JSON: another type, a cycle, an integer of many digits
        return _COMPACT.encode(result)
    if inspect.isawaitable(result):
        return as_text(_wait_for(result))
    plain = _plain(result, frozenset())
    return plain if isinstance(plain, str) else _COMPACT.encode(plain)


def _plain(value: object, inside: frozenset[int]) -> Any:  # JSON
    """Return a value as plain JSON types; `inside` holds the ids of the containers around it."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, inside)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() < 10_000 else hex(value)
    if id(value) in inside or len(inside) >= MAX_DEPTH:
        return "..."
    parts = _parts(value)
    if isinstance(parts, Mapping):
        inside |= {id(value)}
        return {_key(key): _plain(item, inside) for key, item in parts.items()}
    if parts is not None:
        inside |= {id(value)}
        items = [_plain(item, inside) for item in parts]
        return _sorted(items) if isinstance(value, Set) else items
    return _leaf(value)


def _sorted(items: list[Any]) -> list[Any]:  # JSON
    """Return the items of a set in one order: by value, or by their JSON if they cannot be compared."""
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=_COMPACT.encode)


def _parts(value: object) -> Mapping[Any, object] | Iterable[object] | None:  # Any: whatever a key is
    """Return the items of a container or the fields of a record; None: the value is neither."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields} | (value.model_extra or {})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return None if value.ndim == 0 or value.size > MAX_ITEMS else value.tolist()
    if isinstance(value, bytes | bytearray | memoryview | type):
        return None
    if isinstance(value, Iterator):
        return islice(value, MAX_ITEMS)
    has_words = type(value).__str__ is not object.__str__
    if isinstance(value, Iterable) and (isinstance(value, Set | list | tuple) or not has_words):
        return value
    attributes = getattr(value, "__dict__", None)
    if attributes and not has_words and not callable(value) and type(value).__repr__ is object.__repr__:
        return {name: item for name, item in attributes.items() if not name.startswith("_")}
    return None


def _leaf(value: object) -> Any:  # JSON
    """Return a value without parts as JSON: as pydantic writes it, otherwise as it prints itself."""
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.item(), frozenset()) if value.size == 1 else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return repr(data)
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    try:
        return to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError):
        return _words(value)


def _words(value: object) -> str:
    """Return how a value prints itself; its type's name if that would be a place in memory."""
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return name
    prints: Callable[[object], str] = type(value).__str__
    if prints is object.__str__ and type(value).__repr__ is object.__repr__:
        return f"<{type(value).__name__}>"
    return str(value)


def _key(key: object) -> str:
    plain = _plain(key, frozenset())
    return plain if isinstance(plain, str) else _COMPACT.encode(plain)


def _wait_for(awaitable: Awaitable[object]) -> object:
    """Return the result of a coroutine: a decorator hid that the tool is one. Raises: whatever it raises."""

    async def work() -> object:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="tool-coroutine") as thread:
        return thread.submit(asyncio.run, work()).result()
