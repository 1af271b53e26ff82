"""Questions about one table, and about a table with its parent: levels 1 and 2. Their words and queries are data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgym.envs.code._sql.conditions import QuestionSampler
from envgym.envs.code._sql.schema import ColumnKind, ColumnSchema, TableLink, TableSchema
from envgym.envs.data_files import read_toml

QUESTION_FILE = Path(__file__).parents[1] / "data" / "sql_questions.toml"
_TEMPLATES: Mapping[str, Mapping[str, Any]] = read_toml(QUESTION_FILE)  # TOML
_AGGREGATES = {"AVG": "average", "SUM": "total", "MAX": "highest", "MIN": "lowest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and the query that answers it."""

    text: str
    sql: str
    is_ordered: bool = False


Ask = Callable[[QuestionSampler], Question]


def question(kind: str, **values: object) -> Question:
    """Write the text and the query of a kind of question with the values that were drawn."""
    template = _TEMPLATES[kind]
    text, sql = (str(template[part]).format(**values) for part in ("text", "sql"))
    return Question(text=text, sql=sql, is_ordered=template.get("is_ordered", False))


def linked_question(kind: str, link: TableLink, **values: object) -> Question:
    return question(kind, table=link.table, parent=link.parent, joined=link.joined, **values)


def pick_table(sampler: QuestionSampler, *kinds: ColumnKind) -> TableSchema:
    return sampler.pick([table for table in sampler.schema.tables if all(table.of(kind) for kind in kinds)])


def pick_link(sampler: QuestionSampler) -> TableLink:
    return sampler.pick(sampler.schema.links())


def numbers(table: TableSchema, *, is_known: bool = False) -> list[ColumnSchema]:
    """Return the columns of numbers, of those known everywhere."""
    return [column for column in table.of(ColumnKind.NUMBER) if not (is_known and column.unknown)]


def known_dates(table: TableSchema) -> list[ColumnSchema]:
    """Return the columns of dates that are known everywhere."""
    return [column for column in table.of(ColumnKind.DATE) if not column.unknown]


def labels(table: TableSchema) -> list[ColumnSchema]:
    """Return the column that tells rows apart, none for a table without a name."""
    return [column for column in table.columns if column.name == table.label]


def aggregate(sampler: QuestionSampler, column: ColumnSchema) -> tuple[str, str]:
    """Draw an aggregate of a column: its function, and words for it."""
    function = sampler.pick(list(_AGGREGATES))
    recorded = " (where it is recorded)" if column.unknown else ""
    return function, f"{_AGGREGATES[function]} {column.noun}{recorded}"


def _known(table: TableSchema, column: ColumnSchema) -> str:
    return f" AND {table.name}.{column.name} IS NOT NULL" if column.unknown else ""


# ---- one table ----------------------------------------------------------------------------------------------------


def _list(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler)
    column = sampler.pick([column for column in table.columns if column.name != table.label])
    met = sampler.condition(table, but=[column, *labels(table)], depth=1)
    return question("list", table=table, column=column, met=met)


def _count(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler)
    return question("count", table=table, met=sampler.condition(table, depth=1))


def _summary(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.NUMBER)
    column = sampler.pick(numbers(table))
    function, words = aggregate(sampler, column)
    met = sampler.condition(table, but=[column])
    return question("summary", table=table, column=column, met=met, function=function, words=words)


def _top(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.NUMBER)
    column = sampler.pick(numbers(table))
    met = sampler.condition(table, but=[column, *labels(table)])
    is_highest, count = sampler.rng.random() < 0.5, sampler.number(2, 6)
    return question(
        "top",
        table=table,
        column=column,
        met=met,
        count=count,
        first="highest" if is_highest else "lowest",
        direction="DESC" if is_highest else "ASC",
        recorded=" that is recorded" if column.unknown else "",
        known=_known(table, column),
    )


def _different(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.CATEGORY)
    column = sampler.pick(table.of(ColumnKind.CATEGORY))
    return question("different", table=table, column=column, met=sampler.condition(table, but=[column]))


# ---- groups, and a table with its parent -------------------------------------------------------------------------


def _groups(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.CATEGORY, ColumnKind.NUMBER)
    column, number = sampler.pick(table.of(ColumnKind.CATEGORY)), sampler.pick(numbers(table))
    function, words = aggregate(sampler, number)
    met = sampler.condition(table, but=[column, number])
    return question("groups", table=table, column=column, number=number, met=met, function=function, words=words)


def _large_groups(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    met, least = sampler.condition(link.table), sampler.number(2, 9)
    return linked_question("large_groups", link, met=met, least=least)


def _of_parents(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    own, theirs = (sampler.condition(table, but=labels(table)) for table in (link.table, link.parent))
    return linked_question("of_parents", link, own=own, theirs=theirs)


def _by_parent(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    column = sampler.pick(numbers(link.table))
    function, words = aggregate(sampler, column)
    met = sampler.condition(link.table, but=[column])
    return linked_question("by_parent", link, column=column, met=met, function=function, words=words)


def _with_zero(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    return linked_question("with_zero", link, met=sampler.condition(link.table))


def _by_year(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.DATE)
    column = sampler.pick(table.of(ColumnKind.DATE))
    met = sampler.condition(table, but=[column])
    recorded = f", and whose {column.noun} is recorded" if column.unknown else ""
    return question("by_year", table=table, column=column, met=met, recorded=recorded, known=_known(table, column))


def _without(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    return linked_question("without", link, met=sampler.condition(link.table))


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
