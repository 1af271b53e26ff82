"""Data files of an export, written row by row: Parquet, or a JSON object a line."""

import json
from collections.abc import Mapping, Sequence
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
        path.parent.mkdir(parents=True, exist_ok=True)
        self.table = path if format == "parquet" else path.with_suffix(".rows")
        """The rows as Parquet, from which JSON lines are made."""
        self._parquet: Schema = pq.ParquetWriter(self.table, self._schema, compression="zstd")

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
        self.abandon()

    def abandon(self) -> None:
        """Close an incomplete file; may be called twice."""
        if self._parquet is not None:
            self._parquet.close()
            self._parquet = None

    def _flush(self) -> None:
        if self._buffer and self._parquet is not None:
            self._parquet.write_table(pa.Table.from_pylist(self._buffer, schema=self._schema))
            self._buffer = []


def complete(writers: Sequence[RowWriter]) -> None:
    """Complete the files of a data set, so that all of them have the same fields.

    Fields of list entries that are null in all rows of all files are left out: a reader gives each entry all fields,
    and many chat templates take a key whose value is null for one that is set.
    """
    for writer in writers:
        writer.end()
    unused: dict[str, set[str]] = {}
    for writer in writers:
        with pq.ParquetFile(writer.table) as file:
            for field in file.schema_arrow:
                if _entries_type(field.type):
                    own = _unused(file, field.name)
                    unused[field.name] = unused.get(field.name, own) & own
    for writer in writers:
        if any(unused.values()):
            _leave_out(writer.table, unused)
        if writer.table != writer.path:
            _write_lines(writer.table, writer.path)
            writer.table.unlink()


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
            pa.field(field.name, _pruned_type(field.type, unused.get(field.name, set()))) for field in file.schema_arrow
        ])  # fmt: skip
        with pq.ParquetWriter(draft, schema, compression="zstd") as writer:
            for number in range(file.num_row_groups):
                table = file.read_row_group(number)
                columns = [
                    _pruned(column, unused.get(name, set()))
                    for name, column in zip(table.column_names, table.columns, strict=True)
                ]
                writer.write_table(pa.table(columns, schema=schema))
    draft.replace(path)


def _entries_type(kind: Schema) -> Schema:
    """Return the type of the entries of a list of objects, else None."""
    is_entries = pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)
    return kind.value_type if is_entries else None


def _unused(file: Schema, name: str) -> set[str]:
    unused = {field.name for field in _entries_type(file.schema_arrow.field(name).type)}
    for number in range(file.num_row_groups):
        for chunk in file.read_row_group(number, columns=[name]).column(0).chunks:
            entries = pc.list_flatten(chunk)
            unused -= {field for field in unused if entries.field(field).null_count < len(entries)}
    return unused


def _pruned_type(kind: Schema, unused: set[str]) -> Schema:
    entries = _entries_type(kind) if unused else None
    return kind if entries is None else pa.list_(pa.struct([field for field in entries if field.name not in unused]))


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
