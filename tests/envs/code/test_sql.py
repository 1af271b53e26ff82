"""`code/sql-v0` as a whole: what is paid, what the tools show, whose process holds what."""

import json
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym.core.tasks import Split
from envgym.core.turns import Ending, Scored
from envgym.envs.code import sql
from envgym.envs.code._sql.runner import QueryRunner
from envgym.envs.code._sql.schema import generated_schemas
from envgym.envs.code.sql import Sql
from envgym.errors import InvalidInput
from envgym.parsing import tool_call_action
from envgym.records import StepRecord
from envgym.sandbox import PythonSession
from tests.envs.episodes import conformance

ROWS = [(1, "Ann", "Oslo", 10.5), (2, "Bob", "Lima", None), (3, "Cid", "Oslo", 4.5)] + [
    (number, f"P{number}", ("Oslo", "Lima", "Cairo")[number % 3], number / 2) for number in range(4, 24)
]
QUESTION = "Give the city and the number of people of every city."
GOLD = "SELECT city, COUNT(*) FROM person GROUP BY city"


TestSql = conformance("code/sql-v0", num_tasks=2)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "databases" / "people"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "people.sqlite") as base:
        base.execute("CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, city TEXT, pay REAL)")
        base.executemany("INSERT INTO person VALUES (?, ?, ?, ?)", ROWS)
    base.close()
    rows = [
        {"question": QUESTION, "query": GOLD, "db_id": "people"},
        {
            "question": "Who is paid most?",
            "SQL": "SELECT name FROM person ORDER BY pay DESC LIMIT 1",
            "db_id": "people",
        },
        {"question": "How many?", "SQL": "SELECT COUNT(*) FROM person", "db_id": "people", "evidence": "all of them"},
    ]
    (tmp_path / "dev.json").write_text(json.dumps(rows), encoding="utf-8")
    return {"databases": str(tmp_path / "databases"), "source": str(tmp_path / "dev.json")}


def of_files(files: dict[str, str], question: str = QUESTION, **settings: Any) -> Sql:  # Any: the env's own arguments
    env = Sql(databases=files["databases"], source=files["source"], **settings)
    tasks = [env.tasks.task(split, index) for split in Split for index in range(env.tasks.size(split) or 0)]
    env.reset(options={"task": next(task for task in tasks if task.prompt.startswith(question))})
    return env


def record_of(env: Sql, text: str) -> StepRecord:
    record: StepRecord = env.step(text).info["envgym"]
    return record


def paid(env: Sql, query: str) -> dict[str, float]:
    record = record_of(env, f"```sql\n{query}\n```")
    assert isinstance(record.reward, Scored)
    assert (record.ending, record.error) == (Ending.TERMINATED, None)
    return {"value": record.reward.value, **record.reward.components}


RIGHT = {"value": 1.0, "visible": 1.0, "hidden": 1.0}
HARD_CODED = {"value": 0.0, "visible": 1.0, "hidden": 0.0}
WRONG = {"value": 0.0, "visible": 0.0, "hidden": 0.0}
COUNTS = {city: sum(row[2] == city for row in ROWS) for city in ("Oslo", "Lima", "Cairo")}
LITERALS = "VALUES " + ", ".join(f"('{city}', {count})" for city, count in COUNTS.items())


@pytest.mark.parametrize(
    "query, expected",
    [
        (GOLD, RIGHT),
        ("SELECT city AS town, SUM(1) * 1.0 FROM person GROUP BY 1 ORDER BY 2 DESC;", RIGHT),
        (LITERALS, HARD_CODED),
        ("SELECT COUNT(*), city FROM person GROUP BY city", WRONG),  # the other order of columns
        (f"{GOLD} UNION ALL SELECT city, COUNT(*) FROM person GROUP BY city", WRONG),  # each row twice
        (f"{GOLD} LIMIT 2", WRONG),
        ("SELECT city, CAST(COUNT(*) AS TEXT) FROM person GROUP BY city", WRONG),
        ("SELECT 1", WRONG),
        ("SELECT 1 WHERE 1 = 1", WRONG),
        ("SELECT * FROM person", WRONG),
        ("SELECT sql FROM sqlite_master", WRONG),
        ("", WRONG),
        ("DELETE FROM person", WRONG),
        ("ATTACH '1.db' AS other", WRONG),
        ("PRAGMA writable_schema = 1", WRONG),
        (f"{GOLD}; {GOLD}", WRONG),
        ("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x, x FROM c", WRONG),
    ],
)
def test_a_query_is_paid_where_it_is_right_on_every_database(
    files: dict[str, str], query: str, expected: dict[str, float]
) -> None:
    found = paid(of_files(files, seconds=0.3), query)
    assert found == (expected if query else {"value": 0.0})


def test_partial_credit_is_half_the_f1_of_the_worst_database(files: dict[str, str]) -> None:
    assert paid(of_files(files, partial=True), f"{GOLD} LIMIT 2")["value"] == pytest.approx(
        0.4
    )  # 0.5 * 2 * 2 / (2 + 3)
    assert paid(of_files(files, partial=True), "SELECT 1")["value"] == 0.0


def test_files_tell_order_and_evidence(files: dict[str, str]) -> None:
    env = of_files(files, "Who")
    assert env.task.payload["ordered"] is True
    assert of_files(files).task.payload["ordered"] is False
    assert of_files(files, "How").task.prompt == "How many?\nHint: all of them"
    assert paid(env, "SELECT name FROM person WHERE pay = (SELECT MAX(pay) FROM person)") == RIGHT


def test_official_splits_are_kept_and_nothing_is_on_both_sides(files: dict[str, str]) -> None:
    env = Sql(databases=files["databases"], source={"train": files["source"], "test": files["source"]})
    assert [env.tasks.size(split) for split in (Split.TRAIN, Split.TEST)] == [0, 3]


def test_tools_show_rows_tables_and_errors(files: dict[str, str]) -> None:
    env = of_files(files, schema_shown=False, rows_shown=2)
    assert env.reset(options={"task": env.task}).observation == QUESTION
    asked = "SELECT name, pay FROM person ORDER BY id"
    assert env.step(tool_call_action("query", sql=asked)).observation == (
        "name | pay\nAnn | 10.5\nBob | NULL\n(the first 2 rows; there are more)"
    )
    shown = env.step(tool_call_action("schema", table="PERSON")).observation
    assert shown.startswith(
        "CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, city TEXT, pay REAL)\n\n23 rows, such"
    )
    assert env.step(tool_call_action("schema")).observation.startswith("CREATE TABLE person")
    assert env.step(tool_call_action("schema", table="x")).observation == "There is no table x. The tables are: person."
    failed = record_of(env, tool_call_action("query", sql="SELECT nam FROM person"))
    assert (failed.observation, failed.tool_errors) == ("The query fails: no such column: nam.", 1)


def test_oracle_is_right_and_a_fork_or_a_pickle_goes_on(files: dict[str, str]) -> None:
    env = of_files(files)
    env.step(env.oracle())
    twins = [env.fork(), pickle.loads(pickle.dumps(env))]
    assert [twin.step(twin.oracle()).reward for twin in (env, *twins)] == [1.0, 1.0, 1.0]
    assert len({id(twin.state) for twin in (env, *twins)}) == 3


def test_neither_reference_nor_hidden_rows_are_in_the_agents_process(files: dict[str, str]) -> None:
    env = of_files(files)
    env.step(env.oracle())
    session = env.state._session
    assert isinstance(session, PythonSession)
    listed = session.run("import os; sorted(name for name in os.listdir('.') if not name.startswith('_'))").output
    assert listed == "['0.db']\n"
    graded: list[tuple[str, ...]] = []

    class Watched(QueryRunner):
        def close(self) -> None:
            if self._session is not None:
                code = "import gc; any('GROUP BY city' in x for x in gc.get_objects() if isinstance(x, str))"
                graded.append((self._session.run(code).output,))
            super().close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "QueryRunner", Watched)
        assert paid(env, LITERALS) == HARD_CODED
    assert graded
    assert graded[-1] == ("False\n",)


def test_a_broken_reference_makes_the_reward_invalid(files: dict[str, str]) -> None:
    rows = [{"question": QUESTION, "query": "SELECT absent FROM person", "db_id": "people"}]
    Path(files["source"]).write_text(json.dumps(rows), encoding="utf-8")
    record = record_of(of_files(files), f"```\n{GOLD}\n```")
    assert record.ending is Ending.ERROR_ENV
    assert "reference must run within the limits, got no such column: absent (people)" in str(record.error)


def test_a_broken_database_is_an_infrastructure_failure(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "databases" / "people" / "people.sqlite").write_bytes(b"no database at all" * 500)
    with pytest.raises(envgym.errors.EnvFailure, match="database must be an SQLite file"):
        of_files(files)


@pytest.mark.parametrize(
    "row, said",
    [
        ({"question": "x", "db_id": "people"}, r"row must have question, query \(or SQL\) and db_id"),
        ({"question": "x", "query": "SELECT 1", "db_id": "../people"}, "db_id must be a plain name"),
        ({"question": "x", "query": "SELECT 1", "db_id": "others"}, "database must be in the folder, got others"),
    ],
)
def test_bad_rows_are_refused(files: dict[str, str], row: dict[str, str], said: str) -> None:
    Path(files["source"]).write_text(json.dumps([row]), encoding="utf-8")
    with pytest.raises(InvalidInput, match=said):
        Sql(databases=files["databases"], source=files["source"])


def test_a_schema_held_out_is_the_test_split() -> None:
    tasks = Sql(held_out="clinic").tasks
    for split in Split:
        found = {tasks.task(split, index).metadata["schema"] for index in range(tasks.size(split) or 0)}
        assert found == ({"clinic"} if split is Split.TEST else set(generated_schemas()) - {"clinic"})
