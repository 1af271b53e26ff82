"""Tables described so that rows can be drawn for them and questions asked about them."""

import datetime as dt
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from envgym.envs.code._sql.results import Row, Value
from envgym.envs.data_files import read_toml

SCHEMA_FILE = Path(__file__).parents[1] / "data" / "sql_schemas.toml"
NUM_ROWS = ((8, 11), (36, 52), (110, 150))
"""Least and most rows of a generated table, by the number of tables above it."""
FIRST_DAY = dt.date(2018, 1, 1)
NUM_DAYS = 6 * 365


class ColumnKind(StrEnum):
    NAME = "name"
    """A text that belongs to one row alone."""
    CATEGORY = "category"
    NUMBER = "number"
    DATE = "date"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSchema:
    """One column, besides the key and the reference to a parent."""

    name: str
    noun: str
    """How a question names it."""
    kind: ColumnKind
    values: tuple[str, ...] = ()
    """Of names and categories."""
    low: float = 0
    high: float = 0
    step: float = 1
    unknown: float = 0.0
    """Share of rows that have NULL."""
    unit: str = ""

    @property
    def type(self) -> str:
        """SQLite's type."""
        return ("INTEGER" if self.step >= 1 else "REAL") if self.kind is ColumnKind.NUMBER else "TEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One table with the key `id`; `parent_id` refers to its parent, if it has one."""

    name: str
    plural: str
    columns: tuple[ColumnSchema, ...]
    parent: str | None = None
    rows: tuple[int, int] = (0, 0)
    """Least and most."""

    @property
    def noun(self) -> str:
        """How a question calls one row."""
        return self.name.replace("_", " ")

    @property
    def label(self) -> str:
        """The column that tells rows apart in a question."""
        return next((column.name for column in self.columns if column.kind is ColumnKind.NAME), "id")

    @property
    def label_noun(self) -> str:
        """How a question calls that column."""
        return next((column.noun for column in self.columns if column.name == self.label), "id")

    @property
    def a_noun(self) -> str:
        """The noun with its article."""
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"

    def of(self, *kinds: ColumnKind) -> list[ColumnSchema]:
        return [column for column in self.columns if column.kind in kinds]


class TableLink(NamedTuple):
    table: TableSchema
    parent: TableSchema

    @property
    def joined(self) -> str:
        table, parent = self.table.name, self.parent.name
        return f"{table} JOIN {parent} ON {parent}.id = {table}.{parent}_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSchema:
    """The tables of one database, parents first."""

    name: str
    tables: tuple[TableSchema, ...]

    def table(self, name: str) -> TableSchema:
        return next(table for table in self.tables if table.name == name)

    def links(self) -> list[TableLink]:
        return [TableLink(table, self.table(table.parent)) for table in self.tables if table.parent is not None]


@cache
def generated_schemas() -> Mapping[str, DatabaseSchema]:
    data = read_toml(SCHEMA_FILE)
    lists = {
        name: tuple(item["between"].join(parts) for parts in product(*map(str.split, item["parts"])))
        for name, item in data["lists"].items()
    }
    return MappingProxyType({name: _read_schema(name, tables, lists) for name, tables in data["schemas"].items()})


def _read_schema(name: str, tables: Sequence[Any], lists: Mapping[str, tuple[str, ...]]) -> DatabaseSchema:  # TOML
    schemas: list[TableSchema] = []
    depths: dict[str | None, int] = {None: -1}
    for table in tables:
        parent = table.get("parent")
        depths[table["name"]] = depths[parent] + 1
        columns = tuple(_read_column(column, lists) for column in table["columns"])
        rows = NUM_ROWS[depths[table["name"]]]
        schemas.append(
            TableSchema(name=table["name"], plural=table["plural"], columns=columns, parent=parent, rows=rows)
        )
    return DatabaseSchema(name=name, tables=tuple(schemas))


def _read_column(column: Mapping[str, Any], lists: Mapping[str, tuple[str, ...]]) -> ColumnSchema:  # TOML
    fields = {"noun": column["name"], **column, "kind": ColumnKind(column["kind"])}
    if "list" in column:
        fields["values"] = lists[fields.pop("list")]
    elif "values" in column:
        fields["values"] = tuple(column["values"].split())
    return ColumnSchema(**fields)


def create_statement(table: TableSchema) -> str:
    lines = ["id INTEGER PRIMARY KEY"]
    if table.parent is not None:
        lines.append(f"{table.parent}_id INTEGER NOT NULL REFERENCES {table.parent}(id)")
    for column in table.columns:
        rule = " NOT NULL" * (not column.unknown) + " UNIQUE" * (column.kind is ColumnKind.NAME)
        lines.append(f"{column.name} {column.type}{rule}")
    units = [column.unit for column in table.columns]
    notes = ["", *([""] if table.parent is not None else []), *(f"  -- {unit}" if unit else "" for unit in units)]
    ends = [*[","] * (len(lines) - 1), ""]
    body = "\n".join(f"  {line}{end}{note}" for line, end, note in zip(lines, ends, notes, strict=True))
    return f"CREATE TABLE {table.name} (\n{body}\n)"


def write_database(schema: DatabaseSchema, rows: Mapping[str, Sequence[Row]]) -> bytes:
    """Return the SQLite file of a schema with these rows; each begins with its key and its reference."""
    base = sqlite3.connect(":memory:")
    for table in schema.tables:
        base.execute(create_statement(table))
        if table.parent is not None:
            base.execute(f"CREATE INDEX {table.name}_{table.parent} ON {table.name}({table.parent}_id)")
        holes = ", ".join("?" * (1 + (table.parent is not None) + len(table.columns)))
        base.executemany(f"INSERT INTO {table.name} VALUES ({holes})", rows[table.name])
    base.commit()
    return base.serialize()


def draw_rows(schema: DatabaseSchema, rng: np.random.Generator) -> Mapping[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for table in schema.tables:
        count = int(rng.integers(table.rows[0], table.rows[1] + 1))
        columns = [_draw_column(column, count, rng) for column in table.columns]
        if table.parent is not None:
            columns.insert(0, _draw_parents(len(rows[table.parent]), count, rng))
        rows[table.name] = list(zip(range(1, count + 1), *columns, strict=True))
    return rows


def _draw_parents(num_parents: int, count: int, rng: np.random.Generator) -> list[Value]:
    """Draw references, unevenly, so that some parents have many children and one or two have none."""
    shares = rng.dirichlet(np.full(num_parents - 1, 2.0))
    parents = rng.permutation(num_parents)[1:] + 1
    return [int(number) for number in rng.choice(parents, size=count, p=shares)]


def _draw_column(column: ColumnSchema, count: int, rng: np.random.Generator) -> list[Value]:
    match column.kind:
        case ColumnKind.NAME:
            values: list[Value] = [column.values[int(i)] for i in rng.permutation(len(column.values))[:count]]
        case ColumnKind.CATEGORY:
            values = [column.values[int(i)] for i in rng.integers(len(column.values), size=count)]
        case ColumnKind.DATE:
            values = [str(FIRST_DAY + dt.timedelta(days=int(day))) for day in rng.integers(NUM_DAYS, size=count)]
        case ColumnKind.NUMBER:
            steps = int((column.high - column.low) / column.step) + 1
            numbers = [column.low + column.step * int(i) for i in rng.integers(steps, size=count)]
            values = [int(number) if column.step >= 1 else round(number, 2) for number in numbers]
    is_known = rng.random(count) >= column.unknown
    return [value if is_present else None for value, is_present in zip(values, is_known, strict=True)]
