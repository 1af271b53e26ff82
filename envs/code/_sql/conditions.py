"""Conditions on one row, as SQL and as words, with values that occur."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from envgym.envs.code._sql.schema import ColumnKind, ColumnSchema, DatabaseSchema, TableSchema

T = TypeVar("T")


class NoSuchQuestion(Exception):
    """The schema, or what was drawn from it, allows no such question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What holds of a row: `employee.salary > 3000`, `salary is more than 3000` (after `whose`)."""

    sql: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSampler:
    """A schema, its visible database, and the generator that questions are drawn with."""

    schema: DatabaseSchema
    base: sqlite3.Connection
    rng: np.random.Generator

    def pick(self, items: Sequence[T]) -> T:
        """Draw one. Raises: NoSuchQuestion: there is none."""
        if not items:
            raise NoSuchQuestion
        return items[int(self.rng.integers(len(items)))]

    def two(self, items: Sequence[T]) -> tuple[T, T]:
        """Draw two different ones. Raises: NoSuchQuestion: there are not so many."""
        if len(items) < 2:
            raise NoSuchQuestion
        first, second = (int(number) for number in self.rng.permutation(len(items))[:2])
        return items[first], items[second]

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def value(self, table: TableSchema, column: ColumnSchema) -> str | int | float:
        """Draw a value that some row has, none of the rarest."""
        rows = self.base.execute(
            f"SELECT {column.name} FROM {table.name} WHERE {column.name} IS NOT NULL ORDER BY {column.name}"
        ).fetchall()
        low, high = len(rows) // 8, len(rows) - len(rows) // 8
        value: str | int | float = self.pick(rows[low:high])[0]
        return value

    def condition(
        self, table: TableSchema, *, name: str = "", but: Sequence[ColumnSchema] = (), depth: int = 0
    ) -> Condition:
        """Draw a condition on a row of `table`, which the query calls `name`.

        Args:
            table: whose rows.
            name: in the query; the table's own, unless told otherwise.
            but: columns that it must not be about.
            depth: 1 where two conditions may be joined.
        """
        excluded = {column.name for column in but}
        column = self.pick([column for column in table.columns if column.name not in excluded])
        first = self._plain(table, column, f"{name or table.name}.{column.name}")
        if depth == 0 or self.rng.random() < 0.5:
            return first
        second = self.condition(table, name=name, but=[*but, column])
        if self.rng.random() < 0.7:
            return Condition(sql=f"{first.sql} AND {second.sql}", words=f"{first.words}, and whose {second.words}")
        return Condition(sql=f"({first.sql} OR {second.sql})", words=f"{first.words}, or whose {second.words}")

    def _plain(self, table: TableSchema, column: ColumnSchema, sql: str) -> Condition:
        if column.unknown and self.rng.random() < 0.35:
            if self.rng.random() < 0.5:
                return Condition(sql=f"{sql} IS NULL", words=f"{column.noun} is not recorded")
            return Condition(sql=f"{sql} IS NOT NULL", words=f"{column.noun} is recorded")
        match column.kind:
            case ColumnKind.NUMBER:
                return self._of_number(table, column, sql)
            case ColumnKind.DATE:
                return self._of_date(table, column, sql)
            case ColumnKind.NAME:
                return self._of_name(table, column, sql)
        values = sorted({str(self.value(table, column)) for _ in range(6)})
        if len(values) > 2 and self.rng.random() < 0.4:
            one, other = self.two(values)
            listed = f"({_text(one)}, {_text(other)})"
            return Condition(sql=f"{sql} IN {listed}", words=f"{column.noun} is {_text(one)} or {_text(other)}")
        value = _text(self.pick(values))
        if self.rng.random() < 0.2:
            return Condition(sql=f"{sql} <> {value}", words=f"{column.noun} is not {value}")
        return Condition(sql=f"{sql} = {value}", words=f"{column.noun} is {value}")

    def _of_number(self, table: TableSchema, column: ColumnSchema, sql: str) -> Condition:
        value = self.value(table, column)
        match self.number(0, 4):
            case 0:
                return Condition(sql=f"{sql} >= {value}", words=f"{column.noun} is at least {value}")
            case 1:
                return Condition(sql=f"{sql} < {value}", words=f"{column.noun} is less than {value}")
            case 2:
                low, high = sorted((value, self.value(table, column)), key=float)
                if low == high:
                    raise NoSuchQuestion
                words = f"{column.noun} lies between {low} and {high}, both included"
                return Condition(sql=f"{sql} BETWEEN {low} AND {high}", words=words)
        return Condition(sql=f"{sql} > {value}", words=f"{column.noun} is more than {value}")

    def _of_date(self, table: TableSchema, column: ColumnSchema, sql: str) -> Condition:
        value = str(self.value(table, column))
        match self.number(0, 3):
            case 0:
                return Condition(sql=f"{sql} < '{value}'", words=f"{column.noun} is before {value}")
            case 1:
                year = value[:4]
                return Condition(
                    sql=f"strftime('%Y', {sql}) = '{year}'", words=f"{column.noun} lies in the year {year}"
                )
            case 2:
                month = value[5:7]
                words = f"{column.noun} lies in month {int(month)} of any year"
                return Condition(sql=f"strftime('%m', {sql}) = '{month}'", words=words)
        return Condition(sql=f"{sql} > '{value}'", words=f"{column.noun} is after {value}")

    def _of_name(self, table: TableSchema, column: ColumnSchema, sql: str) -> Condition:
        value = str(self.value(table, column))
        if not value.isascii() or not all(mark.isalpha() or mark == " " for mark in value):
            raise NoSuchQuestion
        match self.number(0, 2):
            case 0:
                return Condition(
                    sql=f"{sql} LIKE '{value[0]}%'", words=f"{column.noun} begins with the letter {value[0]}"
                )
            case 1:
                end = value[-1]
                return Condition(sql=f"{sql} LIKE '%{end}'", words=f"{column.noun} ends with the letter {end}")
        start = self.number(1, max(1, len(value) - 3))
        part = value[start : start + 2].lower()
        if not part.isalpha():
            raise NoSuchQuestion
        words = f"{column.noun} contains '{part}', in upper or lower case"
        return Condition(sql=f"{sql} LIKE '%{part}%'", words=words)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
