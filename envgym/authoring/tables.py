"""Tables of rows: from JSONL, JSON, CSV and Parquet files, whatever `datasets.load_dataset` reads, and from memory."""

import csv
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from envgym.core.tasks import Split
from envgym.errors import InvalidInput, near_names

Row = Mapping[str, Any]  # a decoded row: whatever the file holds
RowOrFault = Row | InvalidInput
"""A row, or why a line of a file is none; the reader goes on after it."""
_MAX_CELL = 2**31 - 1
"""Characters of a CSV cell: the largest limit on every system, where the module's own is 131,072."""
_SHOWN = 60
"""Most characters of a line in a sentence about it."""


class Rows(Protocol):
    """Rows in memory: a list of dicts, or a `datasets.Dataset`."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Row]: ...


Source = str | Path | Rows | Mapping[str, str | Path | Rows]
"""A file, a directory or hub name of a data set, rows in memory, or a mapping from split to file or rows."""


def read_tables(
    source: Source, config: str | None, revision: str | None, columns: Collection[str] | None = None
) -> Iterator[tuple[str, Iterable[RowOrFault]]]:
    """Yield (official split or "", rows and faults). Raises: InvalidInput: the source cannot be read.

    Args:
        source: of the rows.
        config: configuration of the data set, where it has several.
        revision: commit or tag of a hub data set.
        columns: names of columns, or paths into them; files of columns are read without the others. None: all.
    """
    if isinstance(source, Mapping):
        for name, part in source.items():
            if isinstance(part, str | Path):
                yield Split.parse(name, where="FileTasks").value, _read_file(Path(part), columns)
            else:
                yield name, _read_rows(part, name, columns)
    elif not isinstance(source, str | Path):
        yield "", _read_rows(source, name_of(source), columns)
    elif Path(source).suffix in _READERS or Path(source).is_file():
        yield "", _read_file(Path(source), columns)
    else:
        for name, rows in _load_dataset(str(source), config, revision).items():
            yield name, _read_rows(rows, name, columns)


def rows_of(items: Iterable[RowOrFault]) -> Iterator[Row]:
    """Yield the rows. Raises: InvalidInput: at the first fault."""
    for item in items:
        if isinstance(item, InvalidInput):
            raise item
        yield item


def name_of(source: Source) -> str:
    """Return the name of a source in sentences."""
    if isinstance(source, str | Path):
        return str(source)
    if isinstance(source, Mapping):
        return str(
            {name: str(part) if isinstance(part, str | Path) else name_of(part) for name, part in source.items()}
        )
    return "the rows in memory"


def _read_rows(rows: Rows, where: str, columns: Collection[str] | None) -> Iterator[RowOrFault]:
    """Yield rows in memory, those of a `datasets.Dataset` as plain values. Raises: InvalidInput: they are no rows."""
    if not (hasattr(rows, "__len__") and hasattr(rows, "__iter__")):
        must, do = (
            "be a file, a name, a list of dicts or a datasets.Dataset",
            "pass list(rows), or load without streaming",
        )
        raise InvalidInput.of("source", must, type(rows).__name__, where=where, do=do)
    plain: Any = rows
    if hasattr(rows, "with_format") and hasattr(rows, "select_columns"):  # a datasets.Dataset
        plain = plain.with_format(None).select_columns(_read_columns(plain.column_names, columns))
    for number, row in enumerate(plain):
        if isinstance(row, Mapping):
            yield row
        else:
            do, place = "pass a list of dicts, such as frame.to_dict('records')", f"row {number} of {where}"
            yield InvalidInput.of("row", "be a mapping from columns to values", row, where=place, do=do)


def _read_columns(names: Sequence[str], columns: Collection[str] | None) -> list[str]:
    """Return the columns in which `columns` are, in order; all of them if one of `columns` is in none."""
    if columns is None:
        return [*names]
    roots = {column if column in names else _root_of(column, names) for column in columns}
    return [*names] if None in roots else [name for name in names if name in roots]


def _root_of(path: str, names: Sequence[str]) -> str | None:
    return next((name for name in names if path.startswith((f"{name}.", f"{name}["))), None)


def _read_file(path: Path, columns: Collection[str] | None) -> Iterator[RowOrFault]:
    if not path.is_file():
        near = near_names(path.name, [file.name for file in path.parent.glob("*") if file.suffix in _READERS])
        do = f"did you mean {' or '.join(str(path.with_name(name)) for name in near)}?" if near else "check the path"
        where = f"folder {path.parent.absolute()}"
        raise InvalidInput.of("source", "be an existing file", str(path), where=where, do=do)
    if path.suffix not in _READERS:
        suffixes = " or ".join(_READERS)
        raise InvalidInput.of("source", f"end in {suffixes}", str(path), where="source of tasks", do="convert the file")
    if path.suffix == ".parquet":
        yield from _read_parquet(path, columns)
    else:
        yield from _READERS[path.suffix](path)


def _read_jsonl(path: Path) -> Iterator[RowOrFault]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
                yield _bad_line(path, number, _describe_fault(line, error))
            else:
                yield row if isinstance(row, dict) else _bad_line(path, number, repr(row))


def _describe_fault(line: bytes, error: Exception) -> str:
    """Return the beginning of a line that is not JSON, and why it is not, without a second number of the line."""
    text = line.decode("utf-8", "backslashreplace").strip()
    preview = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    if isinstance(error, json.JSONDecodeError):
        return f"{preview!r}, which is not JSON: {error.msg[0].lower()}{error.msg[1:]} at character {error.colno}"
    return f"{preview!r}, which cannot be read: {error}"


def _bad_line(path: Path, number: int, got: str, must: str = "be one JSON object") -> InvalidInput:
    return InvalidInput.of("line", must, got, where=f"line {number} of {path}", do="correct or drop the line")


def _read_json(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InvalidInput.of("source", "be JSON", str(error), where=str(path), do="correct the file") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidInput.of("source", "hold a list of objects", rows, where=str(path), do="write one object per task")
    yield from rows


def _read_csv(path: Path) -> Iterator[RowOrFault]:
    csv.field_size_limit(_MAX_CELL)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        try:
            header = next(reader, [])
            if len(set(header)) < len(header) or not header:
                raise _bad_line(path, 1, ", ".join(header) or "nothing", "name each column once")
            for cells in reader:
                if cells and len(cells) != len(header):
                    yield _bad_line(path, reader.line_num, str(len(cells)), f"have {len(header)} cells as the header")
                elif cells:
                    yield dict(zip(header, cells, strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise _bad_line(path, reader.line_num + 1, str(error), "be CSV in UTF-8") from None


def _read_parquet(path: Path, columns: Collection[str] | None = None) -> Iterator[Row]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise _not_installed("pyarrow", path) from None
    try:
        file = parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InvalidInput.of("source", "be a Parquet file", str(error), where=str(path), do="write it again") from None
    with file:
        names = file.schema_arrow.names
        is_nested = any("." in name for name in names)  # which Parquet takes for a path
        for batch in file.iter_batches(columns=None if is_nested else _read_columns(names, columns)):
            yield from batch.to_pylist()


_READERS = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}
"""Ending of a file -> what reads its rows."""


def _load_dataset(name: str, config: str | None, revision: str | None) -> Mapping[str, Rows]:
    try:
        import datasets
    except ImportError:
        raise _not_installed("datasets", name) from None
    try:
        is_saved = (Path(name) / "dataset_dict.json").exists() or (Path(name) / "state.json").exists()
        loaded = datasets.load_from_disk(name) if is_saved else datasets.load_dataset(name, config, revision=revision)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        must, got = "be a file, a data set directory or a hub name", f"{name}: {type(error).__name__}: {error}"
        raise InvalidInput.of("source", must, got, where="source of tasks", do="check it") from None
    return loaded if isinstance(loaded, datasets.DatasetDict) else {"": loaded}


def _not_installed(package: str, source: str | Path) -> InvalidInput:
    do = 'run pip install "envgym[train]", or pass a .jsonl, .json or .csv file'
    return InvalidInput.of(f"package {package}", "be installed to load", str(source), where="source of tasks", do=do)
