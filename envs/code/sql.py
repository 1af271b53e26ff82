"""Answer a question about a database with one SQL query: `code/sql-v0`."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from envgym.core.messages import Action
from envgym.core.tasks import Task, TaskSource
from envgym.core.turns import Scored
from envgym.env import Env
from envgym.envs.code._answers import read_query
from envgym.envs.code._sql.files import DatabaseFolder, questions_in
from envgym.envs.code._sql.question_sets import (
    NUM_HIDDEN,
    DatabaseSource,
    FactbookDatabase,
    GeneratedDatabases,
    shipped,
)
from envgym.envs.code._sql.results import QueryError, QueryResult, overlap, same_results, table_text
from envgym.envs.code._sql.runner import QueryLimits, QueryRunner
from envgym.envs.code._sql.schema import generated_schemas
from envgym.envs.families import LEVELS, levels_of
from envgym.errors import EnvFailure, InvalidInput, ToolError, unknown_name
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.runtime.cache import cached_within
from envgym.tools import tool

PART_SHARE = 0.5
"""What a query is worth at most, with `partial`, that is not right on every database."""
_WHERE = "code/sql-v0"
_SHIPPED: Mapping[str, DatabaseSource] = {"generated": GeneratedDatabases(), "factbook": FactbookDatabase()}
_EXAMPLES = 3
_CELL_CHARS = 80
_MAX_SCHEMA = 20_000
_MAX_SHOWN = 200
_REFERENCE_BYTES = 256 << 20
"""Memory for what references give."""


class Sql(Env[QueryRunner]):
    """Tools look at the database; the first message without a call is the answer, and is graded."""

    blocking = True
    system_prompt = (
        "Answer a question about an SQLite database with one query. You can look at the database with tools. Your "
        "first message without a tool call is the answer: one query in a code block. It is run on this database, and "
        "on others with the same tables and other rows: it must find the answer, not hold it. Give the columns that "
        "are asked for, in that order; their names do not matter, and the order of the rows only where one is asked "
        "for."
    )

    def __init__(
        self,
        *,
        levels: int | Sequence[int] = LEVELS,
        databases: str = "generated",
        source: str | Mapping[str, str] | None = None,
        held_out: str | None = None,
        schema_shown: bool = True,
        rows_shown: int = 20,
        partial: bool = False,
        seconds: float = 2.0,
        max_turns: int | None = 12,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the questions and the rules.

        Args:
            levels: Of the shipped questions: 1 one table, 2 groups and joins, 3 queries within queries; or several.
            databases: generated, factbook, or a folder with `<db_id>/<db_id>.sqlite`, as Spider and BIRD have it.
            source: The questions of such a folder: a JSON list of {question, query or SQL, db_id}; or one for each
                split, as {"train": ..., "test": ...}.
            held_out: A generated schema, such as company, that is all of the test split; the others are for training.
            schema_shown: Whether the first observation shows the tables; else the agent asks.
            rows_shown: Rows that a query tool's call shows, 1 to 200.
            partial: Pay up to half for rows that are right, where not all are.
            seconds: Processor time of one query.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range, files that cannot be read, a wheel that is not installed.
        """
        super().__init__(max_turns=max_turns, **options)
        must, do = f"be 1 to {_MAX_SHOWN}", "pass e.g. rows_shown=20"
        InvalidInput.unless(1 <= rows_shown <= _MAX_SHOWN, "rows_shown", must, rows_shown, where=_WHERE, do=do)
        if not 0 < seconds <= 60:
            raise InvalidInput.of("seconds", "lie in (0, 60]", seconds, where=_WHERE, do="pass e.g. seconds=2")
        self.is_schema_shown, self.rows_shown, self.is_partial = schema_shown, rows_shown, partial
        self.limits = QueryLimits(seconds=seconds)
        self.tasks, self.source = _make_tasks(databases, source, levels, held_out)

    def begin(self, task: Task) -> str:
        self.close()
        name = str(task.payload["database"])
        self.state = QueryRunner([self.source.database(name, 0)], self.limits)
        if not self.is_schema_shown:
            return task.prompt
        return f"{_definitions(self.source, name, self.limits)}\n\n{task.prompt}"

    @tool
    def query(self, sql: str) -> str:
        """Run a query and show the first rows of its result.

        Args:
            sql: One SELECT statement.
        """
        result = self.state.ask(sql, rows=self.rows_shown)
        if isinstance(result, QueryError):
            raise ToolError(f"The query fails: {result.reason}.")
        return table_text(result, _CELL_CHARS)

    @tool
    def schema(self, table: str = "") -> str:
        """Show how a table is defined, how many rows it has, and three of them.

        Args:
            table: Its name; empty: show the definitions of all.
        """
        tables = self.state.tables()
        if not table:
            return _joined(tables)
        actual = next((name for name in tables if name.lower() == table.lower()), None)
        if actual is None:
            raise ToolError(f"There is no table {table[:_CELL_CHARS]}. The tables are: {', '.join(tables)}.")
        quoted = '"' + actual.replace('"', '""') + '"'
        count = self.state.ask(f"SELECT COUNT(*) FROM {quoted}")
        rows = self.state.ask(f"SELECT * FROM {quoted} LIMIT {_EXAMPLES}")
        if isinstance(count, QueryError) or isinstance(rows, QueryError):
            return tables[actual][:_MAX_SCHEMA]
        return f"{tables[actual][:_MAX_SCHEMA]}\n\n{count.rows[0][0]!r} rows, such as\n{table_text(rows, _CELL_CHARS)}"

    def respond(self, action: Action) -> Reply:
        sql = read_query(action.content)
        if sql is None:
            return Reply(observation="There is no query in it.", terminated=True)
        expected = reference_results(self.source, self.task, self.limits)
        results = self._results(sql)
        is_ordered = bool(self.task.payload["ordered"])
        right = [
            isinstance(result, QueryResult) and same_results(result, rows, is_ordered=is_ordered)
            for result, rows in zip(results, expected, strict=True)
        ]
        part = PART_SHARE * min(
            overlap(result, rows) if isinstance(result, QueryResult) else 0.0
            for result, rows in zip(results, expected, strict=True)
        )
        value = 1.0 if all(right) else part if self.is_partial else 0.0
        components = {"visible": float(right[0]), "hidden": float(all(right[1:]))}
        return Reply(
            observation=_describe_failure(results[0], right),
            reward=Scored(value=value, components=components),
            terminated=True,
        )

    def _results(self, sql: str) -> list[QueryResult | QueryError]:
        """Run a query on the visible and the hidden databases, in a process that holds no answers."""
        runner = QueryRunner(databases_of(self.source, str(self.task.payload["database"])), self.limits)
        try:
            return [runner.ask(sql, number) for number in range(1 + NUM_HIDDEN)]
        finally:
            runner.close()

    def oracle(self) -> str:
        sql = str(self.task.payload["sql"])
        if self._turn == 0 and self.max_turns != 1:
            return tool_call_action("query", sql=sql)
        return f"```sql\n{sql}\n```"

    def fork_state(self) -> QueryRunner:
        """Give the copy a process of its own: no query changes anything."""
        return self.state.fork()

    def close(self) -> None:
        state: QueryRunner | None = getattr(self, "state", None)
        if state is not None:
            state.close()
        super().close()


def databases_of(source: DatabaseSource, name: str) -> list[bytes]:
    """Return the visible database and the hidden ones."""
    return [source.database(name, variant) for variant in range(1 + NUM_HIDDEN)]


def reference_results(source: DatabaseSource, task: Task, limits: QueryLimits) -> tuple[QueryResult, ...]:
    """Return the reference's result on every database. Raises: EnvFailure: there is none that can be compared."""
    return _reference_results(source, str(task.payload["database"]), str(task.payload["sql"]), limits)


@cached_within(_REFERENCE_BYTES)
def _reference_results(source: DatabaseSource, name: str, sql: str, limits: QueryLimits) -> tuple[QueryResult, ...]:
    runner = QueryRunner(databases_of(source, name), limits)
    try:
        results = [runner.ask(sql, number) for number in range(1 + NUM_HIDDEN)]
    finally:
        runner.close()
    rows = tuple(item for item in results if isinstance(item, QueryResult) and not item.is_cut)
    if len(rows) < len(results):
        got = next((item.reason for item in results if isinstance(item, QueryError)), f"more than {limits.rows} rows")
        raise EnvFailure.of("reference", "run within the limits", got, where=name, do="leave the question out")
    return rows


@lru_cache(maxsize=256)
def _definitions(source: DatabaseSource, name: str, limits: QueryLimits) -> str:
    runner = QueryRunner([source.database(name, 0)], limits)
    try:
        return _joined(runner.tables())
    finally:
        runner.close()


def _joined(tables: Mapping[str, str]) -> str:
    text = "\n\n".join(f"{definition};" for definition in tables.values())
    return text if len(text) <= _MAX_SCHEMA else f"{text[:_MAX_SCHEMA]}\n..."


def _describe_failure(visible: QueryResult | QueryError, right: Sequence[bool]) -> str:
    if isinstance(visible, QueryError):
        return f"The query fails: {visible.reason}."
    if all(right):
        return "The result is right on every database."
    return "The result is right on the database shown, but not on another one." if right[0] else "The result is wrong."


def _make_tasks(
    databases: str, source: str | Mapping[str, str] | None, levels: int | Sequence[int], held_out: str | None
) -> tuple[TaskSource, DatabaseSource]:
    task_levels = levels_of(levels, where=_WHERE)
    if held_out is not None and (databases != "generated" or held_out not in generated_schemas()):
        raise unknown_name("generated schema", held_out, generated_schemas(), where=f"{_WHERE}, held_out")
    if databases in _SHIPPED:
        if source is not None:
            do = "name a folder of databases, or leave source out"
            raise InvalidInput.of("source", "come with a folder of databases", databases, where=_WHERE, do=do)
        return shipped(databases, task_levels, held_out), _SHIPPED[databases]
    if source is None:
        must, do = "be generated, factbook, or a folder that comes with a source", "pass source='dev.json'"
        raise InvalidInput.of("databases", must, databases, where=_WHERE, do=do)
    folder = DatabaseFolder(databases)
    return questions_in(source, folder), folder
