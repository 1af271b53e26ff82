"""Where databases come from, and the questions that ship with them: each proved by its mutants."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

from envgym.authoring import ListTasks, TaskDraft
from envgym.authoring.sources import task_from_draft
from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split, split_of
from envgym.envs.code._sql import factbook_database, guest
from envgym.envs.code._sql.conditions import NoSuchQuestion, QuestionSampler
from envgym.envs.code._sql.mutants import mutants
from envgym.envs.code._sql.nested import NESTED
from envgym.envs.code._sql.questions import ONE_TABLE, QUESTION_FILE, TWO_TABLES, Ask, Question
from envgym.envs.code._sql.results import QueryResult, same_results
from envgym.envs.code._sql.schema import SCHEMA_FILE, DatabaseSchema, draw_rows, generated_schemas, write_database
from envgym.envs.world_factbook.pages import fingerprint
from envgym.runtime.cache import build_once, cache_directory
from envgym.seeds import generator

LEVELS: Mapping[int, Mapping[str, Ask]] = {1: ONE_TABLE, 2: TWO_TABLES, 3: NESTED}
NUM_HIDDEN = 2
"""Databases besides the visible one."""
_NUM_DATABASES = 4
"""Databases of each generated schema."""
_OF_FACTBOOK = 13
"""Questions of each kind."""
_MAX_ROWS = 200
_MAX_DRAWS = 40


class DatabaseSource(Protocol):
    def __hash__(self) -> int:
        """Equal sources hold the same databases: results are kept by it."""
        ...

    def database(self, name: str, variant: int) -> bytes:
        """Return an SQLite file: variant 0 is the visible one, others have the same tables and other rows."""
        ...


@dataclass(frozen=True, slots=True)
class GeneratedDatabases:
    """Databases with drawn rows: `company/2` is the third one of the schema `company`."""

    def database(self, name: str, variant: int) -> bytes:
        return _generated_database(name, variant)


@dataclass(frozen=True, slots=True)
class FactbookDatabase:
    def database(self, name: str, variant: int) -> bytes:
        """Return the factbook's database. Raises: InvalidInput: the wheel is not installed."""
        return _factbook_database(variant)


@lru_cache(maxsize=16)
def shipped(kind: str, levels: tuple[int, ...], held_out: str | None) -> ListTasks:
    """Return the questions of `generated` or `factbook` databases; a schema held out is all of the test split."""
    path = build_once(cache_directory() / f"sql-{kind}-{_fingerprint()}", lambda work: _write_questions(kind, work))
    lines = (path / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    drafts = [TaskDraft(**json.loads(line)) for line in lines]
    level_drafts = [draft for draft in drafts if draft.metadata["level"] in levels]
    return _on_both_sides(level_drafts, held_out)


def _on_both_sides(drafts: Sequence[TaskDraft], held_out: str | None) -> ListTasks:
    """Put questions on their sides: by schema where one is held out, else by content.

    Two databases of one schema may have the same question. One whose words are in the test split is not for training.
    """
    sides: dict[Split, list[TaskDraft]] = {split: [] for split in Split}
    for draft in drafts:
        is_test = draft.metadata["schema"] == held_out if held_out else split_of(draft.payload) is Split.TEST
        sides[Split.TEST if is_test else Split.TRAIN].append(draft)
    tested = {draft.prompt for draft in sides[Split.TEST]}
    sides[Split.TRAIN] = [draft for draft in sides[Split.TRAIN] if draft.prompt not in tested]
    return ListTasks(
        [
            task_from_draft(draft, split, f"{split}/{index}")
            for split, side in sides.items()
            for index, draft in enumerate(side)
        ]
    )


# ---- questions ----------------------------------------------------------------------------------------------------


def draw_questions(schema: DatabaseSchema, name: str, databases: Sequence[bytes], repeats: int) -> Iterator[TaskDraft]:
    """Draw questions of every kind about one database; its first is the visible one."""
    bases = [_open_database(content) for content in databases]
    seen: set[str] = set()
    for level, kinds in LEVELS.items():
        for kind, ask in kinds.items():
            for number in range(repeats):
                sampler = QuestionSampler(schema=schema, base=bases[0], rng=generator("code/sql", name, kind, number))
                question = _draw_proved(ask, sampler, bases)
                if question is None or question.sql in seen:
                    continue
                seen.add(question.sql)
                payload: JsonObject = {"database": name, "sql": question.sql, "ordered": question.is_ordered}
                metadata: JsonObject = {"level": level, "kind": kind, "schema": schema.name}
                yield TaskDraft(prompt=question.text, payload=payload, metadata=metadata)


def _draw_proved(ask: Ask, sampler: QuestionSampler, bases: Sequence[sqlite3.Connection]) -> Question | None:
    """Draw until a question has an answer that no fixed rows and no mutant gives on all databases."""
    for _ in range(_MAX_DRAWS):
        try:
            question = ask(sampler)
        except NoSuchQuestion:
            continue
        if is_proved(question, bases):
            return question
    return None


def is_proved(question: Question, bases: Sequence[sqlite3.Connection]) -> bool:
    """Tell whether the results differ between all databases, and each mutant's from the query's on one of them."""
    results = [result for base in bases if (result := run_query(base, question.sql)) is not None]
    if len(results) < len(bases) or not 0 < len(results[0].rows) <= _MAX_ROWS or _is_empty(results[0]):
        return False
    pairs = [(one, other) for number, one in enumerate(results) for other in results[:number]]
    if any(same_results(one, other, is_ordered=question.is_ordered) for one, other in pairs):
        return False
    return not any(passes(mutant, question, results, bases) for mutant in mutants(question.sql))


def passes(sql: str, question: Question, expected: Sequence[QueryResult], bases: Sequence[sqlite3.Connection]) -> bool:
    """Tell whether a query gives what is wanted on every database."""
    for base, rows in zip(bases, expected, strict=True):
        result = run_query(base, sql)
        if result is None or not same_results(result, rows, is_ordered=question.is_ordered):
            return False
    return True


def run_query(base: sqlite3.Connection, sql: str) -> QueryResult | None:
    try:
        cursor = base.execute(sql)
        rows = tuple(cursor.fetchmany(10 * _MAX_ROWS))
    except sqlite3.Error:
        return None
    return QueryResult(columns=tuple(item[0] for item in cursor.description), rows=rows)


def _is_empty(result: QueryResult) -> bool:
    """Tell whether all that is said is nothing: no row, or one NULL or 0."""
    return all(cell in (None, 0) for row in result.rows for cell in row)


# ---- databases ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _generated_database(name: str, variant: int) -> bytes:
    schema_name, _, number = name.partition("/")
    rng = generator("code/sql", schema_name, int(number), "rows", variant)
    return write_database(generated_schemas()[schema_name], draw_rows(generated_schemas()[schema_name], rng))


@lru_cache(maxsize=8)
def _factbook_database(variant: int) -> bytes:
    if variant:
        return guest.varied(_factbook_database(0), variant)
    target = cache_directory() / f"sql-database-{_fingerprint()}"
    folder = build_once(
        target, lambda work: _write_database(work / "factbook_database.db", factbook_database.factbook_file())
    )
    return (folder / "factbook_database.db").read_bytes()


def _write_database(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _write_questions(kind: str, folder: Path) -> None:
    if kind == "generated":
        names = [
            (schema, f"{schema.name}/{number}")
            for schema in generated_schemas().values()
            for number in range(_NUM_DATABASES)
        ]
        source: DatabaseSource = GeneratedDatabases()
        repeats = 1
    else:
        names, source, repeats = [(factbook_database.factbook_schema(), "factbook")], FactbookDatabase(), _OF_FACTBOOK
    drafts: dict[str, TaskDraft] = {}
    for schema, name in names:
        databases = [source.database(name, variant) for variant in range(1 + NUM_HIDDEN)]
        for draft in draw_questions(schema, name, databases, repeats):
            drafts.setdefault(json.dumps(draft.payload), draft)
    lines = (
        json.dumps({"prompt": draft.prompt, "payload": draft.payload, "metadata": draft.metadata})
        for draft in drafts.values()
    )
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _open_database(content: bytes) -> sqlite3.Connection:
    base = sqlite3.connect(":memory:")
    base.deserialize(content)
    return base


@cache
def _fingerprint() -> str:
    """Return the cache key of questions and databases: a hash of this code and the factbook's, and its version."""
    return fingerprint([*sorted(Path(__file__).parent.glob("*.py")), SCHEMA_FILE, QUESTION_FILE])
