"""What a query gives, and when two results are the same."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

Value = None | int | float | str | bytes
Row = tuple[Value, ...]
TOLERANCE = 1e-6
"""Of floats, relative; a billionth near zero."""
_NEAR_ZERO = 1e-9
_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    is_cut: bool = False
    """True where there are more rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryError:
    """Why there is no result: the query's own fault."""

    reason: str


def same_results(result: QueryResult, expected: QueryResult, *, is_ordered: bool) -> bool:
    """Tell whether two results hold the same rows, each as often; in the same order where that was asked for.

    Columns count by their place, whatever their names. Whole numbers and floats of the same value are the same; a
    number and a text are not.
    """
    if result.is_cut or expected.is_cut or len(result.rows) != len(expected.rows):
        return False
    if len(result.columns) != len(expected.columns):
        return False
    left, right = (list(item.rows) if is_ordered else sorted(item.rows, key=_rank) for item in (result, expected))
    return all(_same_row(one, other) for one, other in zip(left, right, strict=True))


def overlap(result: QueryResult, expected: QueryResult) -> float:
    """Return the F1 of two results' rows, in any order."""
    if len(result.columns) != len(expected.columns) or not result.rows or not expected.rows:
        return 0.0
    left, right = (Counter(_rank(row) for row in item.rows) for item in (result, expected))
    return 2 * (left & right).total() / (left.total() + right.total())


def table_text(result: QueryResult, max_chars: int) -> str:
    """Write a result for a reader, cell for cell within `max_chars`."""
    lines = [result.columns, *([_show_cell(cell, max_chars) for cell in row] for row in result.rows)]
    text = "\n".join(" | ".join(line) for line in lines)
    return f"{text}\n({_counted(result)})"


def _counted(result: QueryResult) -> str:
    count = len(result.rows)
    return f"the first {count} rows; there are more" if result.is_cut else f"{count} row{'s' * (count != 1)}"


def _show_cell(cell: Value, max_chars: int) -> str:
    if cell is None:
        return "NULL"
    text = f"x'{cell.hex()}'" if isinstance(cell, bytes) else str(cell)
    text = text.replace("\n", "\\n")
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."


def _same_row(one: Sequence[Value], other: Sequence[Value]) -> bool:
    return all(_same_value(a, b) for a, b in zip(one, other, strict=True))


def _same_value(one: Value, other: Value) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        is_exact = isinstance(one, int) and isinstance(other, int)
        return one == other if is_exact else math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=_NEAR_ZERO)
    return type(one) is type(other) and one == other


def _rank(row: Row) -> tuple[tuple[Hashable, ...], ...]:
    """Return the sort key of a row: numbers last, and less exactly than floats differ by rounding."""
    texts = tuple((type(cell).__name__, cell) for cell in row if not isinstance(cell, int | float) and cell is not None)
    places = tuple("number" if isinstance(cell, int | float) else type(cell).__name__ for cell in row)
    numbers = tuple(_round_number(cell) for cell in row if isinstance(cell, int | float))
    return places, texts, numbers


def _round_number(number: float) -> float:
    try:
        return float(f"{number:.{_DIGITS}g}") + 0.0  # no negative zero
    except OverflowError:
        return math.inf if number > 0 else -math.inf
