"""Which column of a row is what, and how a column is found: by its name, or by a path into it (`extra_info.answer`)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from envgym.authoring.tables import Row
from envgym.errors import InvalidInput, UnknownName, suggestion

_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[-?\d+\])*")
_STEP = re.compile(r"\[(-?\d+)\]|[^.\[\]]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNames:
    """Which column is what; each name may be a path, such as `extra_info.answer` or `choices[0]`."""

    prompt: str = "prompt"
    """What the agent is asked: a text, or a list of messages. The payload has it too, as its field `prompt`."""
    payload: Mapping[str, str] = field(default_factory=lambda: {"answer": "answer"})
    """Payload field -> column."""
    metadata: tuple[str, ...] = ()
    id: str | None = None
    """None: tasks are called `<split>/<index>`."""
    split: str | None = None
    """Column that says `train` or `test`; None: the files say it, or the content does."""


_NAMED_COLUMNS = ("prompt", "metadata", "id", "split")
"""Keys of a mapping of columns that are no field of the payload, but what they are in `ColumnNames`."""


def column_names(columns: Mapping[str, str], *, where: str = "FileTasks") -> ColumnNames:
    """Return the columns of a mapping by field. Raises: InvalidInput: one of its values names no column."""
    entries: Mapping[str, object] = columns
    for name, column in entries.items():
        if not isinstance(column, str):
            must, do = "be the name of a column", "pass ColumnNames for more than one column"
            raise InvalidInput.of(f"columns[{name!r}]", must, repr(column), where=where, do=do)
    return ColumnNames(
        prompt=columns.get("prompt", "prompt"),
        payload={name: column for name, column in columns.items() if name not in _NAMED_COLUMNS},
        metadata=(columns["metadata"],) if "metadata" in columns else (),
        id=columns.get("id"),
        split=columns.get("split"),
    )


def named_columns(columns: ColumnNames) -> frozenset[str]:
    """Return the names and paths of all columns that are read."""
    single = (columns.prompt, columns.id, columns.split)
    return frozenset(filter(None, (*single, *columns.payload.values(), *columns.metadata)))


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
