"""Questions that take a query within a query: averages, sets, ranks, running totals, three tables. Level 3."""

from collections.abc import Mapping

from envgym.envs.code._sql.conditions import NoSuchQuestion, QuestionSampler
from envgym.envs.code._sql.questions import (
    Ask,
    Question,
    a,
    aggregate,
    exists,
    joined,
    labels,
    noun_of,
    numbers,
    pick_link,
    pick_table,
)
from envgym.envs.code._sql.schema import ColumnKind


def _above_average(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.NUMBER)
    column = sampler.pick(numbers(table))
    met = sampler.condition(table, but=[column, *labels(table)])
    is_above = sampler.rng.random() < 0.5
    words = f"{'more' if is_above else 'less'} than the average {column.noun} of all {table.plural}"
    recorded = " (unrecorded ones do not count)" if column.unknown else ""
    text = (
        f"Give the {noun_of(table)} of every {table.noun} whose {met.words}, and whose {column.noun} is "
        f"{words}{recorded}."
    )
    name = f"{table.name}.{column.name}"
    sql = (
        f"SELECT {table.name}.{table.label} FROM {table.name} WHERE {met.sql} "
        f"AND {name} {'>' if is_above else '<'} (SELECT AVG({column.name}) FROM {table.name})"
    )
    return Question(text=text, sql=sql)


def _above_own_average(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    column = sampler.pick(numbers(table))
    is_above = sampler.rng.random() < 0.5
    met = sampler.condition(table, but=[column, *labels(table)])
    recorded = " (unrecorded ones do not count)" if column.unknown else ""
    text = (
        f"Give the {noun_of(table)} of every {table.noun} whose {met.words}, and whose {column.noun} is "
        f"{'more' if is_above else 'less'} than the average {column.noun} of all {table.plural} of the same "
        f"{parent.noun}{recorded}."
    )
    sql = (
        f"SELECT {table.name}.{table.label} FROM {table.name} WHERE {met.sql} AND {table.name}.{column.name} "
        f"{'>' if is_above else '<'} (SELECT AVG(other.{column.name}) FROM {table.name} AS other "
        f"WHERE other.{parent.name}_id = {table.name}.{parent.name}_id)"
    )
    return Question(text=text, sql=sql)


def _both(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    first = sampler.condition(table)
    second = sampler.condition(table)
    if first.sql == second.sql:
        raise NoSuchQuestion
    operator, words = sampler.pick(
        (("INTERSECT", "and also at least one"), ("EXCEPT", "but none"), ("UNION", "or at least one"))
    )
    text = (
        f"Which {parent.plural} have at least one {table.noun} whose {first.words}, {words} whose {second.words}? Give "
        f"the {noun_of(parent)} of each, once."
    )
    parts = [
        f"SELECT {parent.name}.{parent.label} FROM {joined(table, parent)} WHERE {met.sql}" for met in (first, second)
    ]
    return Question(text=text, sql=f" {operator} ".join(parts))


def _best_of_each(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    column, count = sampler.pick(numbers(table, is_known=True)), sampler.number(1, 3)
    met = sampler.condition(table, but=[column])
    which = f"{count} {table.plural}" if count > 1 else f"{table.noun}"
    text = (
        f"Look at the {table.plural} whose {met.words}. For every {parent.noun}, take of them the {which} with the "
        f"highest {column.noun}, or all where there are fewer; where it is the same, the one whose {noun_of(table)} "
        f"comes first goes first. Give the {noun_of(parent)} of the {parent.noun}, the {noun_of(table)} of the "
        f"{table.noun} and its {column.noun}."
    )
    inner = (
        f"SELECT {parent.name}.{parent.label} AS owner, {table.name}.{table.label} AS item, {table.name}.{column.name} "
        f"AS size, ROW_NUMBER() OVER (PARTITION BY {parent.name}.id ORDER BY {table.name}.{column.name} DESC, "
        f"{table.name}.{table.label}) AS place FROM {joined(table, parent)} WHERE {met.sql}"
    )
    return Question(text=text, sql=f"SELECT owner, item, size FROM ({inner}) WHERE place <= {count}")


def _largest_group(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    column, count = sampler.pick(numbers(table, is_known=True)), sampler.number(1, 3)
    function, words = aggregate(sampler, column)
    met = sampler.condition(table, but=[column])
    text = (
        f"Look at the {table.plural} whose {met.words}, and at their {words} for each {parent.noun} that has some. "
        f"Give the {noun_of(parent)} of the {parent.noun} and that number for the {count} where it is highest, the "
        f"highest first; where it is the same, in rising order of {noun_of(parent)}."
    )
    sql = (
        f"SELECT {parent.name}.{parent.label}, {function}({table.name}.{column.name}) FROM {joined(table, parent)} "
        f"WHERE {met.sql} GROUP BY {parent.name}.id ORDER BY 2 DESC, 1 ASC LIMIT {count}"
    )
    return Question(text=text, sql=sql, is_ordered=True)


def _three_tables(sampler: QuestionSampler) -> Question:
    table, middle = sampler.pick([pair for pair in sampler.schema.links() if pair[1].parent is not None])
    parent = sampler.schema.table(str(middle.parent))
    column = sampler.pick(numbers(table))
    function, words = aggregate(sampler, column)
    whose = sampler.pick((middle, table))
    met = sampler.condition(whose, but=[column])
    text = (
        f"For every {parent.noun} with {middle.plural} that have {table.plural}, give its {noun_of(parent)} and the "
        f"{words} of the {table.plural} of its {middle.plural}; only {whose.plural} whose {met.words} count, and "
        f"{a(parent)} without any is left out."
    )
    sql = (
        f"SELECT {parent.name}.{parent.label}, {function}({table.name}.{column.name}) FROM {joined(table, middle)} "
        f"JOIN {parent.name} ON {parent.name}.id = {middle.name}.{parent.name}_id WHERE {met.sql} GROUP BY "
        f"{parent.name}.id"
    )
    return Question(text=text, sql=sql)


def _share(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    met = sampler.condition(table)
    if "NULL" not in met.sql and any(column.unknown and f".{column.name} " in met.sql for column in table.columns):
        raise NoSuchQuestion  # a row of which it is not known would count as one where it is not so
    text = (
        f"For every {parent.noun} that has {table.plural}, give its {noun_of(parent)} and the percentage of its "
        f"{table.plural} whose {met.words}, from 0 to 100 and not rounded."
    )
    sql = (
        f"SELECT {parent.name}.{parent.label}, 100.0 * SUM(CASE WHEN {met.sql} THEN 1 ELSE 0 END) / COUNT(*) "
        f"FROM {joined(table, parent)} GROUP BY {parent.name}.id"
    )
    return Question(text=text, sql=sql)


def _change(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.DATE)
    column = sampler.pick([column for column in table.of(ColumnKind.DATE) if not column.unknown])
    met = sampler.condition(table, but=[column])
    text = (
        f"Count the {table.plural} whose {met.words} by the year of their {column.noun}. For every year that occurs, "
        "give the year as four digits of text, the count, and the count less that of the year before it in this list "
        "(NULL for the first), in rising order of the years."
    )
    inner = (
        f"SELECT strftime('%Y', {table.name}.{column.name}) AS year, COUNT(*) AS num FROM {table.name} WHERE {met.sql} "
        "GROUP BY 1"
    )
    sql = f"SELECT year, num, num - LAG(num) OVER (ORDER BY year) FROM ({inner}) ORDER BY year ASC"
    return Question(text=text, sql=sql, is_ordered=True)


def _running(sampler: QuestionSampler) -> Question:
    table = pick_table(sampler, ColumnKind.DATE, ColumnKind.NUMBER)
    date = sampler.pick([column for column in table.of(ColumnKind.DATE) if not column.unknown])
    number = sampler.pick(numbers(table, is_known=True))
    met = sampler.condition(table, but=[date, number])
    order = f"{table.name}.{date.name}, {table.name}.id"
    text = (
        f"Put the {table.plural} whose {met.words} in the order of their {date.noun}, then of their id. For each, give "
        f"its id, its {number.noun}, and the total {number.noun} from the first to this one, in this order."
    )
    sql = (
        f"SELECT {table.name}.id, {table.name}.{number.name}, SUM({table.name}.{number.name}) OVER (ORDER BY {order}) "
        f"FROM {table.name} WHERE {met.sql} ORDER BY {order}"
    )
    return Question(text=text, sql=sql, is_ordered=True)


def _above_average_groups(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    column = sampler.pick(numbers(table, is_known=True))
    met = sampler.condition(parent, but=labels(parent))
    text = (
        f"Which {parent.plural} whose {met.words} have an average {column.noun} of their {table.plural} that is more "
        f"than the average {column.noun} of all {table.plural}? Give the {noun_of(parent)} and that average."
    )
    sql = (
        f"SELECT {parent.name}.{parent.label}, AVG({table.name}.{column.name}) FROM {joined(table, parent)} WHERE "
        f"{met.sql} GROUP BY {parent.name}.id HAVING AVG({table.name}.{column.name}) > (SELECT AVG({column.name}) FROM "
        f"{table.name})"
    )
    return Question(text=text, sql=sql)


def _some_and_none(sampler: QuestionSampler) -> Question:
    table, parent = pick_link(sampler)
    own, theirs = sampler.condition(parent, but=labels(parent)), sampler.condition(table)
    text = (
        f"Count, for every value of {{}}, the {parent.plural} whose {own.words}, and that have no {table.noun} whose "
        f"{theirs.words}. Give the value and the count, where it is not 0."
    )
    column = sampler.pick([column for column in parent.of(ColumnKind.CATEGORY) if f".{column.name} " not in own.sql])
    name = f"{parent.name}.{column.name}"
    sql = (
        f"SELECT {name}, COUNT(*) FROM {parent.name} WHERE {own.sql} AND NOT {exists(table, parent, theirs)} GROUP BY "
        f"{name}"
    )
    return Question(text=text.format(column.noun), sql=sql)


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
