"""Queries that are nearly a given one: a question is taken only where each of them gives something else somewhere."""

import re
from collections.abc import Iterator

_SWAPS = (
    (" > ", " >= "),
    (" < ", " <= "),
    (" >= ", " > "),
    (" <= ", " < "),
    (" > ", " < "),
    (" < ", " > "),
    (" = '", " <> '"),
    (" AND ", " OR "),
    (" OR ", " AND "),
    (" WHERE ", " WHERE 1 OR "),
    (" HAVING ", " HAVING 1 OR "),
    (" ASC", " DESC"),
    (" DESC", " ASC"),
    ("COUNT(*)", "COUNT(*) + 1"),
    ("AVG(", "SUM("),
    ("SUM(", "MAX("),
    ("MIN(", "MAX("),
    ("MAX(", "MIN("),
    ("LEFT JOIN", "JOIN"),
    ("IS NOT NULL", "IS NULL"),
    ("IS NULL", "IS NOT NULL"),
    ("DISTINCT ", ""),
    ("NOT EXISTS", "EXISTS"),
    (" INTERSECT ", " UNION "),
    (" EXCEPT ", " INTERSECT "),
    (" UNION ", " UNION ALL "),
    (" BETWEEN ", " NOT BETWEEN "),
    (" IN (", " NOT IN ("),
    (" LIKE '%", " LIKE '"),
)
_NO_EQUALS = re.compile(r" [<>] \(")
"""Nothing is ever equal to an average."""
_COUNT = re.compile(r"(LIMIT |place <= |>= )(\d+)")


def mutants(sql: str) -> Iterator[str]:
    """Yield queries that differ from `sql` in one place."""
    for old, new in _SWAPS:
        start = sql.find(old)
        while start >= 0:
            is_average = _NO_EQUALS.match(sql, start) is not None and new.endswith("= ")
            if not is_average:
                yield sql[:start] + new + sql[start + len(old) :]
            start = sql.find(old, start + 1)
    for match in _COUNT.finditer(sql):
        yield f"{sql[: match.start()]}{match[1]}{int(match[2]) + 1}{sql[match.end() :]}"
