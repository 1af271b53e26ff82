"""What runs inside the sandbox of a database; sent there as a file, so it imports the standard library only.

A query that a model wrote may read tables and call SQLite's own functions, and nothing else: an authorizer refuses what
is no reading, the file is opened as one that cannot change, and size and time are bounded here before the sandbox does.
"""

import json
import random
import sqlite3
import sys
import time
from typing import Any, NamedTuple

Cell = Any  # what SQLite holds: None, int, float, str, bytes
MAX_VALUE = 1_000_000
"""Bytes of one value."""
_HEAP = 64 * 1024**2
_STEPS = 5_000
"""Steps of SQLite's machine between two looks at the clock."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 50_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_REFUSED = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "random", "randomblob"}


class ReadOnlyDatabase:
    """A database that queries can only read."""

    def __init__(self, path: str, seconds: float) -> None:
        """Open a file; `seconds` of processor time are each query's."""
        self._seconds, self._deadline, self._refused = seconds, 0.0, ""
        self._base = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, isolation_level=None)
        self._base.text_factory = lambda raw: raw.decode(errors="replace")
        for name, value in (("trusted_schema", 0), ("hard_heap_limit", _HEAP), ("query_only", 1), ("temp_store", 2)):
            self._base.execute(f"PRAGMA {name} = {value}").fetchall()
        for limit, value in _LIMITS.items():
            self._base.setlimit(limit, value)
        self._base.set_authorizer(self._allow)
        self._base.set_progress_handler(self._is_late, _STEPS)

    def ask(self, sql: str, max_rows: int, max_bytes: int) -> dict[str, Any]:  # Any: cells
        """Return columns and rows, or the error; `cut` where there are more rows than asked for or than fit."""
        self._deadline, self._refused = time.thread_time() + self._seconds, ""
        try:
            cursor = self._base.execute(sql)
            if cursor.description is None:
                return {"error": "this is no query that returns rows"}
            names, size = [item[0] for item in cursor.description], 0
            rows: list[list[Cell]] = []
            for row in cursor:
                size += sum(len(cell) + 8 if isinstance(cell, str | bytes) else 8 for cell in row)
                if len(rows) >= max_rows or size > max_bytes:
                    cursor.close()
                    return {"columns": names, "rows": rows, "cut": True}
                rows.append([{"b": cell.hex()} if isinstance(cell, bytes) else cell for cell in row])
            return {"columns": names, "rows": rows, "cut": False}
        except MemoryError:
            return {"error": "it needs too much memory"}
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            return {"error": self._told(str(error))}

    def tables(self) -> list[list[str]]:
        """Return the name and the definition of each table and view."""
        rows = self._base.execute(
            "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') AND sql IS NOT NULL "
            "AND name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY rowid"
        )
        return [[str(name), str(sql)] for name, sql in rows]

    def _allow(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action in _READING or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() not in _REFUSED):
            return sqlite3.SQLITE_OK
        self._refused = f"the function {second}" if action == sqlite3.SQLITE_FUNCTION else "anything but reading"
        return sqlite3.SQLITE_DENY

    def _is_late(self) -> bool:
        return time.thread_time() > self._deadline

    def _told(self, error: str) -> str:
        if self._refused:
            return f"{self._refused} is not allowed"
        if error == "interrupted":
            return f"it takes more than {self._seconds:g} seconds"
        return "it needs too much memory" if "out of memory" in error else error


# ---- other rows in the same tables --------------------------------------------------------------------------------


class _TableValues(NamedTuple):
    name: str
    free: list[str]
    """Columns that are no key, no reference and not unique."""


KEPT = 0.8
"""Share of the rows that stay."""
_MIN_ROWS = 8
_ROUNDS = 6


def varied(content: bytes, seed: int) -> bytes:
    """Return a database with the same tables and other rows: a fifth gone, the values of free columns exchanged."""
    draw = random.Random(seed)
    base = sqlite3.connect(":memory:", isolation_level=None)
    base.text_factory = bytes
    base.deserialize(content[:18] + b"\x01\x01" + content[20:])  # a journal of its own would be another file
    for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        base.execute(f"DROP TRIGGER {_quoted(name.decode())}")
    base.execute("BEGIN")
    for table in _tables(base):
        rows = [row for (row,) in base.execute(f"SELECT rowid FROM {_quoted(table.name)} ORDER BY rowid")]
        if len(rows) >= _MIN_ROWS:
            gone = draw.sample(rows, round((1 - KEPT) * len(rows)))
            base.executemany(f"DELETE FROM {_quoted(table.name)} WHERE rowid = ?", [(row,) for row in gone])
        for column in table.free:
            _exchange(base, table.name, column, draw)
    for _ in range(_ROUNDS):
        lost = [item for item in base.execute("PRAGMA foreign_key_check").fetchall() if item[1] is not None]
        for name, row, *_ in lost:
            base.execute(f"DELETE FROM {_quoted(name.decode())} WHERE rowid = ?", (row,))
        if not lost:
            break
    base.execute("COMMIT")
    base.execute("VACUUM")
    return base.serialize()


def _tables(base: sqlite3.Connection) -> list[_TableValues]:
    listed = base.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY rowid").fetchall()
    names = [name.decode() for name, sql in listed if sql and b"VIRTUAL TABLE" not in sql.upper()[:30]]
    names = [name for name in names if not name.startswith("sqlite_") and _has_row_ids(base, name)]
    fixed: dict[str, set[str]] = {name.lower(): set() for name in names}
    for name in names:
        for _, _, parent, own, theirs, *_ in base.execute(f"PRAGMA foreign_key_list({_quoted(name)})").fetchall():
            fixed[name.lower()].add(own.decode().lower())
            if theirs is not None:
                fixed.setdefault(parent.decode().lower(), set()).add(theirs.decode().lower())
        for _, index, is_unique, *_ in base.execute(f"PRAGMA index_list({_quoted(name)})").fetchall():
            if is_unique:
                members = base.execute(f"PRAGMA index_info({_quoted(index.decode())})").fetchall()
                fixed[name.lower()] |= {column.decode().lower() for _, _, column in members if column is not None}
    return [
        _TableValues(
            name,
            [
                column.decode()
                for _, column, _, _, _, key in base.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
                if not key and column.decode().lower() not in fixed[name.lower()]
            ],
        )
        for name in names
    ]


def _has_row_ids(base: sqlite3.Connection, name: str) -> bool:
    try:
        base.execute(f"SELECT rowid FROM {_quoted(name)} LIMIT 1").fetchall()
    except sqlite3.OperationalError:
        return False
    return True


def _exchange(base: sqlite3.Connection, table: str, column: str, draw: random.Random) -> None:
    """Give each row the value of another one, as far as the table's rules allow."""
    rows = base.execute(f"SELECT rowid, {_quoted(column)} FROM {_quoted(table)} ORDER BY rowid").fetchall()
    values = [value.decode(errors="replace") if isinstance(value, bytes) else value for _, value in rows]
    draw.shuffle(values)
    changes = [(value, row) for value, (row, _) in zip(values, rows, strict=True)]
    base.executemany(f"UPDATE OR IGNORE {_quoted(table)} SET {_quoted(column)} = ? WHERE rowid = ?", changes)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# ---- how the host asks --------------------------------------------------------------------------------------------

_readers: dict[tuple[str, float], ReadOnlyDatabase] = {}


def answer(path: str, seconds: float, sql: str, max_rows: int, max_bytes: int) -> None:
    """Print what a query gives, as JSON."""
    print(json.dumps(_reader(path, seconds).ask(sql, max_rows, max_bytes)))


def tell(path: str, seconds: float) -> None:
    """Print the tables, as JSON."""
    print(json.dumps(_reader(path, seconds).tables()))


def _reader(path: str, seconds: float) -> ReadOnlyDatabase:
    if (path, seconds) not in _readers:
        _readers[path, seconds] = ReadOnlyDatabase(path, seconds)
    return _readers[path, seconds]


if __name__ == "__main__":
    sys.stdout.buffer.write(varied(sys.stdin.buffer.read(), int(sys.argv[1])))
