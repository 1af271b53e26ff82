"""Data files of an export, written row by row: Parquet, or a JSON object a line."""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from envgym.export.rows import DataRow

Format = Literal["parquet", "jsonl"]
_BUFFERED_ROWS: Final = 512
Schema = Any  # pyarrow has no types


class RowWriter:
    """A data file that grows; `complete` completes it."""

    def __init__(self, path: Path, columns: Mapping[str, Schema], format: Format) -> None:
        """Open the file, whose folder is made where it is missing."""
        self.path, self.num_rows, self.num_turns = path, 0, 0
        self._schema = pa.schema(list(columns.items()))
        self._buffer: list[dict[str, Any]] = []
        self.unused = {name: _field_names(kind) for name, kind in columns.items()}
        """Column -> fields of its list entries that are null in all rows so far."""
        self._threads = ThreadPoolExecutor(max_workers=1)
        self._written: Future[None] | None = None
        """The last table that was handed to the thread that encodes and compresses."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.table = path if format == "parquet" else path.with_suffix(".rows")
        """The rows as Parquet, from which JSON lines are made."""
        self._parquet: Schema = _parquet_file(self.table, self._schema)

    def add(self, row: DataRow) -> None:
        """Add a row."""
        self.num_rows += 1
        self.num_turns += row.num_turns
        self._buffer.append(row.cells)
        if len(self._buffer) == _BUFFERED_ROWS:
            self._flush()

    def end(self) -> None:
        """Write the last rows."""
        self._flush()
        self._wait()
        self.abandon()

    def abandon(self) -> None:
        """Close an incomplete file; may be called twice."""
        self._threads.shutdown()
        if self._parquet is not None:
            self._parquet.close()
            self._parquet = None

    def _flush(self) -> None:
        if self._buffer and self._parquet is not None:
            table = pa.Table.from_pylist(self._buffer, schema=self._schema)
            for name, unused in self.unused.items():
                unused -= _used(table[name], unused)
            self._wait()
            self._written = self._threads.submit(self._parquet.write_table, table)
            self._buffer = []

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()


def complete(writers: Sequence[RowWriter]) -> None:
    """Complete the files of a data set, so that all of them have the same fields.

    Fields of list entries that are null in all rows of all files are left out: a reader gives each entry all fields,
    and many chat templates take a key whose value is null for one that is set.
    """
    for writer in writers:
        writer.end()
    for writer in writers:
        unused = {name: set.intersection(*(other.unused[name] for other in writers)) for name in writer.unused}
        if any(unused.values()):
            _leave_out(writer.table, unused)
        if writer.table != writer.path:
            _write_lines(writer.table, writer.path)
            writer.table.unlink()


def _parquet_file(path: Path, schema: Schema) -> Schema:
    texts = [field.name for field in schema if not pa.types.is_nested(field.type)]
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=texts)  # entries of lists repeat little


def _write_lines(table: Path, path: Path) -> None:
    with pq.ParquetFile(table) as file, path.open("w", encoding="utf-8") as lines:
        for batch in file.iter_batches(batch_size=_BUFFERED_ROWS):
            lines.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in batch.to_pylist())


# ---- fields that no message has --------------------------------------------------------------------------------------


def _leave_out(path: Path, unused: Mapping[str, set[str]]) -> None:
    """Write a Parquet file again without some fields of list entries."""
    with pq.ParquetFile(path) as file:
        draft = path.with_suffix(".draft")
        schema = pa.schema([
            pa.field(field.name, _pruned_type(field.type, unused[field.name])) for field in file.schema_arrow
        ])  # fmt: skip
        with _parquet_file(draft, schema) as writer:
            for number in range(file.num_row_groups):
                table = file.read_row_group(number)
                columns = [
                    _pruned(column, unused[name])
                    for name, column in zip(table.column_names, table.columns, strict=True)
                ]
                writer.write_table(pa.table(columns, schema=schema))
    draft.replace(path)


def _field_names(kind: Schema) -> set[str]:
    """Return the fields of the entries of a list of objects; none for another type."""
    is_entries = pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)
    return {field.name for field in kind.value_type} if is_entries else set()


def _used(column: Schema, fields: Iterable[str]) -> set[str]:
    """Return those of the fields that an entry of a column has."""
    entries = [pc.list_flatten(chunk) for chunk in column.chunks] if fields else []
    return {name for name in fields for chunk in entries if chunk.field(name).null_count < len(chunk)}


def _pruned_type(kind: Schema, unused: set[str]) -> Schema:
    if not unused:
        return kind
    return pa.list_(pa.struct([field for field in kind.value_type if field.name not in unused]))


def _pruned(column: Schema, unused: set[str]) -> Schema:
    if not unused:
        return column
    kind = _pruned_type(column.type, unused)
    chunks = [
        pa.ListArray.from_arrays(
            _offsets(chunk),
            pa.StructArray.from_arrays(
                [pc.list_flatten(chunk).field(field.name) for field in kind.value_type], fields=list(kind.value_type)
            ),
        )
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, type=kind)


def _offsets(chunk: Schema) -> Schema:
    """Return the places at which the lists of a chunk begin among all its entries; a null becomes an empty list."""
    lengths = pc.fill_null(pc.list_value_length(chunk), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
