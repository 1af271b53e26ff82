"""Questions about one table, and about a table with its parent: levels 1 and 2."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from envgym.envs.code._sql.conditions import Condition, QuestionSampler
from envgym.envs.code._sql.schema import ColumnKind, ColumnSchema, TableSchema

_AGGREGATES = {"AVG": "average", "SUM": "total", "MAX": "highest", "MIN": "lowest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and the query that answers it."""

    text: str
    sql: str
    is_ordered: bool = False


Ask = Callable[[QuestionSampler], Question]


def pick_table(sampler: QuestionSampler, *kinds: ColumnKind) -> TableSchema:
    """Draw a table that has columns of all these kinds."""
    return sampler.pick([table for table in sampler.schema.tables if all(table.of(kind) for kind in kinds)])


def pick_link(sampler: QuestionSampler) -> tuple[TableSchema, TableSchema]:
    """Draw a table with its parent."""
    return sampler.pick(sampler.schema.links())


def numbers(table: TableSchema, *, is_known: bool = False) -> list[ColumnSchema]:
    """Return the columns of numbers, of those known everywhere."""
    return [column for column in table.of(ColumnKind.NUMBER) if not (is_known and column.unknown)]


def labels(*tables: TableSchema) -> list[ColumnSchema]:
    """Return the columns that tell rows apart, the first for a table without a name."""
    return [found for table in tables for found in table.columns if found.name == table.label]


def noun_of(table: TableSchema) -> str:
    """Return how a question calls the column that tells rows apart."""
    return next((column.noun for column in table.columns if column.name == table.label), "id")


def a(table: TableSchema) -> str:
    """Return a table's noun with its article."""
    return f"{'an' if table.noun[0] in 'aeiou' else 'a'} {table.noun}"


def aggregate(sampler: QuestionSampler, column: ColumnSchema) -> tuple[str, str]:
    """Draw an aggregate of a column: its function, and words for it."""
    function = sampler.pick(list(_AGGREGATES))
    recorded = " (where it is recorded)" if column.unknown else ""
    return function, f"{_AGGREGATES[function]} {column.noun}{recorded}"


# ---- one table ----------------------------------------------------------------------------------------------------


def _list(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler)
    shown = sampler.pick([column for column in table.columns if column.name != table.label])
    met = sampler.condition(table, but=[shown, *labels(table)], depth=1)
    text = f"Give the {noun_of(table)} and the {shown.noun} of every {table.noun} whose {met.words}."
    columns = f"{table.name}.{table.label}, {table.name}.{shown.name}"
    return Question(text=text, sql=f"SELECT {columns} FROM {table.name} WHERE {met.sql}")


def _count(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler)
    met = sampler.condition(table, depth=1)
    text = f"How many {table.plural} are there whose {met.words}?"
    return Question(text=text, sql=f"SELECT COUNT(*) FROM {table.name} WHERE {met.sql}")


def _summary(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.NUMBER)
    column = sampler.pick(numbers(table))
    function, words = aggregate(sampler, column)
    met = sampler.condition(table, but=[column])
    text = f"What is the {words} of the {table.plural} whose {met.words}?"
    return Question(text=text, sql=f"SELECT {function}({table.name}.{column.name}) FROM {table.name} WHERE {met.sql}")


def _top(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.NUMBER)
    column = sampler.pick(numbers(table))
    met = sampler.condition(table, but=[column, *labels(table)])
    is_highest, count = sampler.rng.random() < 0.5, sampler.number(2, 6)
    known = f" AND {table.name}.{column.name} IS NOT NULL" if column.unknown else ""
    direction = "DESC" if is_highest else "ASC"
    order = f"{table.name}.{column.name} {direction}, {table.name}.{table.label} ASC"
    text = (
        f"Of the {table.plural} whose {met.words}, take the {count} with the {'highest' if is_highest else 'lowest'} "
        f"{column.noun}{' that is recorded' if known else ''}. Give their {noun_of(table)} and {column.noun}, the "
        f"{'highest' if is_highest else 'lowest'} first; where it is the same, in rising order of {noun_of(table)}."
    )
    columns = f"{table.name}.{table.label}, {table.name}.{column.name}"
    sql = f"SELECT {columns} FROM {table.name} WHERE {met.sql}{known} ORDER BY {order} LIMIT {count}"
    return Question(text=text, sql=sql, is_ordered=True)


def _different(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.CATEGORY)
    column = sampler.pick(table.of(ColumnKind.CATEGORY))
    met = sampler.condition(table, but=[column])
    text = f"Which different values of {column.noun} occur among the {table.plural} whose {met.words}? Give each once."
    return Question(text=text, sql=f"SELECT DISTINCT {table.name}.{column.name} FROM {table.name} WHERE {met.sql}")


# ---- groups, and a table with its parent -------------------------------------------------------------------------


def _groups(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.CATEGORY, ColumnKind.NUMBER)
    column, number = sampler.pick(table.of(ColumnKind.CATEGORY)), sampler.pick(numbers(table))
    function, words = aggregate(sampler, number)
    met = sampler.condition(table, but=[column, number])
    text = (
        f"Look at the {table.plural} whose {met.words}. For every {column.noun} that occurs among them, give the "
        f"{column.noun}, how many they are, and their {words}."
    )
    name = f"{table.name}.{column.name}"
    columns = f"{name}, COUNT(*), {function}({table.name}.{number.name})"
    return Question(text=text, sql=f"SELECT {columns} FROM {table.name} WHERE {met.sql} GROUP BY {name}")


def _large_groups(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    met, least = sampler.condition(table), sampler.number(2, 9)
    text = (
        f"Which {parent.plural} have at least {least} {table.plural} whose {met.words}? Give the {noun_of(parent)} of "
        f"the {parent.noun} and how many such {table.plural} it has."
    )
    sql = (
        f"SELECT {parent.name}.{parent.label}, COUNT(*) FROM {joined(table, parent)} WHERE {met.sql} "
        f"GROUP BY {parent.name}.id HAVING COUNT(*) >= {least}"
    )
    return Question(text=text, sql=sql)


def _of_parents(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    own, theirs = sampler.condition(table, but=labels(table)), sampler.condition(parent, but=labels(parent))
    text = (
        f"Look at the {table.plural} whose {own.words}. Of them, take those of {a(parent)} whose {theirs.words}. Give "
        f"the {noun_of(table)} of the {table.noun} and the {noun_of(parent)} of the {parent.noun}."
    )
    columns = f"{table.name}.{table.label}, {parent.name}.{parent.label}"
    return Question(text=text, sql=f"SELECT {columns} FROM {joined(table, parent)} WHERE {own.sql} AND {theirs.sql}")


def _by_parent(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    column = sampler.pick(numbers(table))
    function, words = aggregate(sampler, column)
    met = sampler.condition(table, but=[column])
    text = (
        f"For every {parent.noun} that has {table.plural} whose {met.words}, give its {noun_of(parent)} and the "
        f"{words} of these {table.plural}."
    )
    sql = (
        f"SELECT {parent.name}.{parent.label}, {function}({table.name}.{column.name}) FROM {joined(table, parent)} "
        f"WHERE {met.sql} GROUP BY {parent.name}.id"
    )
    return Question(text=text, sql=sql)


def _with_zero(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    met = sampler.condition(table)
    text = (
        f"For every {parent.noun}, give its {noun_of(parent)} and how many {table.plural} it has whose {met.words}; "
        f"{a(parent)} that has none counts 0."
    )
    sql = (
        f"SELECT {parent.name}.{parent.label}, COUNT({table.name}.id) FROM {parent.name} LEFT JOIN {table.name} "
        f"ON {table.name}.{parent.name}_id = {parent.name}.id AND {met.sql} GROUP BY {parent.name}.id"
    )
    return Question(text=text, sql=sql)


def _by_year(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.DATE)
    column = sampler.pick(table.of(ColumnKind.DATE))
    met = sampler.condition(table, but=[column])
    year = f"strftime('%Y', {table.name}.{column.name})"
    known = f" AND {table.name}.{column.name} IS NOT NULL" if column.unknown else ""
    text = (
        f"Look at the {table.plural} whose {met.words}{f', and whose {column.noun} is recorded' if known else ''}. For "
        f"every year in which one of them has its {column.noun}, give the year as four digits of text and how many "
        "they are, the latest year first."
    )
    sql = f"SELECT {year}, COUNT(*) FROM {table.name} WHERE {met.sql}{known} GROUP BY 1 ORDER BY 1 DESC"
    return Question(text=text, sql=sql, is_ordered=True)


def _without(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    met = sampler.condition(table)
    text = f"Which {parent.plural} have no {table.noun} whose {met.words}? Give the {noun_of(parent)} of each."
    return Question(
        text=text, sql=f"SELECT {parent.name}.{parent.label} FROM {parent.name} WHERE NOT {exists(table, parent, met)}"
    )


def joined(table: TableSchema, parent: TableSchema) -> str:
    """Return the two tables joined."""
    return f"{table.name} JOIN {parent.name} ON {parent.name}.id = {table.name}.{parent.name}_id"


def exists(table: TableSchema, parent: TableSchema, met: Condition) -> str:
    """Return that a parent has a row that meets a condition."""
    return f"EXISTS (SELECT 1 FROM {table.name} WHERE {table.name}.{parent.name}_id = {parent.name}.id AND {met.sql})"


ONE_TABLE: Mapping[str, Ask] = {
    "list": _list,
    "count": _count,
    "summary": _summary,
    "top": _top,
    "different": _different,
}
TWO_TABLES: Mapping[str, Ask] = {
    "groups": _groups,
    "large_groups": _large_groups,
    "of_parents": _of_parents,
    "by_parent": _by_parent,
    "with_zero": _with_zero,
    "by_year": _by_year,
    "without": _without,
}
