"""Which column of a row is what, and how a column is found: by its name, or by a path into it (`extra_info.answer`)."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from envgym.authoring.tables import Row
from envgym.core.json_types import JsonValue, is_json
from envgym.errors import InvalidInput, UnknownName, suggestion

_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[-?\d+\])*")
_STEP = re.compile(r"\[(-?\d+)\]|[^.\[\]]+")
EVERY = "*"
"""Stands for every column that no other field reads, as a column of the metadata."""
ColumnMapping = Mapping[str, str | Sequence[str]]
"""Field -> column, as settings name them; `metadata` may have a list of columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNames:
    """Which column is what; each name may be a path, such as `extra_info.answer` or `choices[0]`."""

    prompt: str = "prompt"
    """What the agent is asked: a text, or a list of messages. The payload has it too, as its field `prompt`."""
    payload: Mapping[str, str] = field(default_factory=lambda: {"answer": "answer"}, hash=False)
    """Payload field -> column."""
    metadata: tuple[str, ...] = ()
    """`*` stands for every column that no other field reads.

    Cells that hold nothing, such as null or a blank text, are left out. With `*`, so are cells that hold no JSON.
    """
    id: str | None = None
    """None: tasks are called `<split>/<index>`."""
    split: str | None = None
    """Column that says `train` or `test`; None: the files say it, or the content does."""


_NAMED_COLUMNS = ("prompt", "metadata", "id", "split")
"""Keys of a mapping of columns that are no field of the payload, but what they are in `ColumnNames`."""


def column_names(columns: ColumnMapping, *, where: str = "FileTasks") -> ColumnNames:
    """Return the columns of a mapping by field. Raises: InvalidInput: one of its values names no column."""
    single = {name: _column(name, value, where) for name, value in columns.items() if name != "metadata"}
    return ColumnNames(
        prompt=single.get("prompt", "prompt"),
        payload={name: column for name, column in single.items() if name not in _NAMED_COLUMNS},
        metadata=_columns(columns.get("metadata", ()), where),
        id=single.get("id"),
        split=single.get("split"),
    )


def further_columns(columns: ColumnMapping | None, *, filled_fields: Collection[str], where: str) -> ColumnNames:
    """Return the columns that tasks of a known form have in addition; without `metadata` that is `*`.

    Args:
        columns: as settings name them; None: nothing but the metadata.
        filled_fields: fields of the payload that the form itself fills.
        where: place in errors.

    Raises: InvalidInput: a value names no column, or a field is one that the form fills.
    """
    columns = {"metadata": EVERY, **(columns or {})}
    for name in columns:
        must, do = "name metadata or a further field of the payload", "leave it out, or use data/file-v0"
        is_further = name == "metadata" or name not in {*filled_fields, *_NAMED_COLUMNS}
        InvalidInput.unless(is_further, "columns", must, name, where=where, do=do)
    return column_names(columns, where=where)


def _column(name: str, value: object, where: str) -> str:
    if not isinstance(value, str):
        must, do = "be the name of a column", "name one column"
        raise InvalidInput.of(f"columns[{name!r}]", must, repr(value), where=where, do=do)
    return value


def _columns(value: object, where: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        must, do = "be the name of a column, or a list of names", f"pass e.g. {EVERY!r} for all columns"
        raise InvalidInput.of("columns['metadata']", must, repr(value), where=where, do=do)
    return tuple(names)


def named_columns(columns: ColumnNames) -> frozenset[str] | None:
    """Return the names and paths of all columns that are read; None: every column."""
    if EVERY in columns.metadata:
        return None
    single = (columns.prompt, columns.id, columns.split)
    return frozenset(filter(None, (*single, *columns.payload.values(), *columns.metadata)))


def read_payload(row: Row, columns: ColumnNames, where: str) -> dict[str, JsonValue]:
    """Return the fields of the payload that columns fill. Raises: InvalidInput: a row lacks a column."""
    return {name: read_cell(row, column, where) for name, column in columns.payload.items()}


def read_metadata(row: Row, columns: ColumnNames, where: str, *, read: Collection[str] = ()) -> dict[str, JsonValue]:
    """Return the metadata of a row.

    Args:
        row: of a table.
        columns: which columns it names.
        where: place in errors.
        read: the column of the prompt, and further columns that other fields read; `*` leaves them out.

    Returns: the cells by column; cells that hold nothing are left out.

    Raises: InvalidInput: a row lacks a column that is named.
    """
    metadata: dict[str, Any] = {}
    if EVERY in columns.metadata:
        others = {columns.id, columns.split, *columns.payload.values(), *read}
        metadata = {name: value for name, value in row.items() if name not in others and is_json(value)}
    metadata |= {name: read_cell(row, name, where) for name in columns.metadata if name != EVERY}
    return {name: value for name, value in metadata.items() if not _is_empty(value)}


def _is_empty(cell: object) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def read_cell(row: Row, column: str, where: str) -> Any:  # whatever the cell holds
    """Return the cell of a column, or what a path finds in it. Raises: InvalidInput: there is none."""
    if column in row:
        return row[column]
    value: Any = row
    path = ""
    for step in _steps(column):
        if isinstance(step, str):
            if not isinstance(value, Mapping):
                raise _not_inside(column, path, "an object", value, where)
            if step not in value:
                raise _unknown_column(column, row, where)
        elif not isinstance(value, list | tuple) or not -len(value) <= step < len(value):
            raise _not_inside(column, path, f"a list with an entry {step}", value, where)
        value = value[step]
        path = f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}".lstrip(".")
    return value


@lru_cache(maxsize=256)
def _steps(column: str) -> tuple[str | int, ...]:
    """Return the names and indices of a path; a text that is no path is one name."""
    if _PATH.fullmatch(column) is None:
        return (column,)
    return tuple(match[0] if match[1] is None else int(match[1]) for match in _STEP.finditer(column))


def _unknown_column(column: str, row: Row, where: str) -> UnknownName:
    paths = list(_paths(row))
    ends = [path for path in paths if path.endswith(f".{column}")]
    do = f"did you mean {' or '.join(ends)}?" if ends else suggestion(column, paths, otherwise="name one of them")
    return UnknownName.of("column", f"be one of {', '.join(paths)}", repr(column), where=where, do=do)


def _paths(row: Row) -> Iterator[str]:
    """Yield the columns of a row, those of objects with each field."""
    for name, value in row.items():
        fields = list(value) if isinstance(value, Mapping) else []
        yield from (f"{name}.{field}" for field in fields) if fields else (name,)


def _not_inside(column: str, path: str, must: str, value: object, where: str) -> InvalidInput:
    what, do = f"{path or 'row'} of column {column!r}", "correct the path, or the row"
    return InvalidInput.of(what, f"be {must}", value, where=where, do=do)
