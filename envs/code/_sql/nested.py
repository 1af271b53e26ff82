"""Questions that take a query within a query: averages, sets, ranks, running totals, three tables. Level 3."""

from collections.abc import Mapping

from envgym.envs.code._sql.conditions import NoSuchQuestion, QuestionSampler
from envgym.envs.code._sql.questions import (
    Ask,
    Question,
    aggregate,
    known_dates,
    labels,
    linked_question,
    numbers,
    pick_link,
    pick_table,
    question,
)
from envgym.envs.code._sql.schema import ColumnKind, ColumnSchema

_SIDES = {True: {"more": "more", "sign": ">"}, False: {"more": "less", "sign": "<"}}
"""Above or below an average, in words and in SQL."""


def _unrecorded(column: ColumnSchema) -> str:
    return " (unrecorded ones do not count)" if column.unknown else ""


def _above_average(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.NUMBER)
    column = sampler.pick(numbers(table))
    met = sampler.condition(table, but=[column, *labels(table)])
    side = _SIDES[sampler.rng.random() < 0.5]
    return question("above_average", table=table, column=column, met=met, recorded=_unrecorded(column), **side)


def _above_own_average(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    column = sampler.pick(numbers(link.table))
    side = _SIDES[sampler.rng.random() < 0.5]
    met = sampler.condition(link.table, but=[column, *labels(link.table)])
    return linked_question("above_own_average", link, column=column, met=met, recorded=_unrecorded(column), **side)


def _both(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    first = sampler.condition(link.table)
    second = sampler.condition(link.table)
    if first.sql == second.sql:
        raise NoSuchQuestion
    operator, words = sampler.pick(
        (("INTERSECT", "and also at least one"), ("EXCEPT", "but none"), ("UNION", "or at least one"))
    )
    return linked_question("both", link, first=first, second=second, operator=operator, words=words)


def _best_of_each(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    column, count = sampler.pick(numbers(link.table, is_known=True)), sampler.number(1, 3)
    met = sampler.condition(link.table, but=[column])
    which = f"{count} {link.table.plural}" if count > 1 else link.table.noun
    return linked_question("best_of_each", link, column=column, met=met, which=which, count=count)


def _largest_group(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    column, count = sampler.pick(numbers(link.table, is_known=True)), sampler.number(1, 3)
    function, words = aggregate(sampler, column)
    met = sampler.condition(link.table, but=[column])
    return linked_question("largest_group", link, column=column, met=met, count=count, function=function, words=words)


def _three_tables(sampler: QuestionSampler) -> Question:
    link = sampler.pick([link for link in sampler.schema.links() if link.parent.parent is not None])
    grandparent = sampler.schema.table(str(link.parent.parent))
    column = sampler.pick(numbers(link.table))
    function, words = aggregate(sampler, column)
    whose = sampler.pick((link.parent, link.table))
    values = {"grandparent": grandparent, "column": column, "whose": whose, "function": function, "words": words}
    return linked_question("three_tables", link, met=sampler.condition(whose, but=[column]), **values)


def _share(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    met = sampler.condition(link.table)
    unknown = [column for column in link.table.columns if column.unknown and f".{column.name} " in met.sql]
    if unknown and "NULL" not in met.sql:
        raise NoSuchQuestion  # a row of which it is not known would count as one where it is not so
    return linked_question("share", link, met=met)


def _change(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.DATE)
    column = sampler.pick(known_dates(table))
    return question("change", table=table, column=column, met=sampler.condition(table, but=[column]))


def _running(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.DATE, ColumnKind.NUMBER)
    date = sampler.pick(known_dates(table))
    number = sampler.pick(numbers(table, is_known=True))
    met = sampler.condition(table, but=[date, number])
    return question("running", table=table, date=date, number=number, met=met)


def _above_average_groups(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    column = sampler.pick(numbers(link.table, is_known=True))
    met = sampler.condition(link.parent, but=labels(link.parent))
    return linked_question("above_average_groups", link, column=column, met=met)


def _some_and_none(sampler: QuestionSampler) -> Question:
    link = pick_link(sampler)
    own, theirs = sampler.condition(link.parent, but=labels(link.parent)), sampler.condition(link.table)
    categories = link.parent.of(ColumnKind.CATEGORY)
    column = sampler.pick([column for column in categories if f".{column.name} " not in own.sql])
    return linked_question("some_and_none", link, column=column, own=own, theirs=theirs)


NESTED: Mapping[str, Ask] = {
    "above_average": _above_average,
    "above_own_average": _above_own_average,
    "both": _both,
    "best_of_each": _best_of_each,
    "largest_group": _largest_group,
    "three_tables": _three_tables,
    "share": _share,
    "change": _change,
    "running": _running,
    "above_average_groups": _above_average_groups,
    "some_and_none": _some_and_none,
}
