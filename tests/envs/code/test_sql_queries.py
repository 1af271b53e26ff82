"""Hostile queries end with a sentence; variants keep keys; results compare as multisets of rows."""

import random
import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.envs.code._sql import guest
from envgym.envs.code._sql.results import QueryError, QueryResult, Row, overlap, same_results, table_text
from envgym.envs.code._sql.runner import QueryLimits, QueryRunner
from envgym.envs.code._sql.runner import vary_database as varied_in_sandbox
from envgym.errors import EnvFailure

DEFINITIONS = """
CREATE TABLE owner (id INTEGER PRIMARY KEY, name TEXT UNIQUE, city TEXT);
CREATE TABLE pet (
    id INTEGER PRIMARY KEY, owner_id INTEGER REFERENCES owner(id), kind TEXT, weight REAL CHECK (weight > 0)
);
CREATE TABLE plain (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE VIEW heavy AS SELECT * FROM pet WHERE weight > 20;
CREATE TRIGGER kept AFTER DELETE ON pet BEGIN INSERT INTO plain VALUES (OLD.id, 'gone'); END;
"""


def database() -> bytes:
    base = sqlite3.connect(":memory:")
    base.executescript(DEFINITIONS)
    base.executemany("INSERT INTO owner VALUES (?, ?, ?)", [(i, f"owner {i}", f"city {i % 4}") for i in range(1, 21)])
    base.executemany("INSERT INTO pet VALUES (?, ?, ?, ?)", [(i, i % 20 + 1, f"kind {i % 3}", i) for i in range(1, 61)])
    base.executemany(
        "INSERT INTO plain VALUES (?, ?)", [("a", "1"), ("b", "\udcff".encode("utf-8", "surrogateescape"))]
    )
    base.commit()
    return base.serialize()


CONTENT = database()


@pytest.fixture(scope="module")
def runner() -> Iterator[QueryRunner]:
    made = QueryRunner([CONTENT], QueryLimits(seconds=0.2, rows=1000))
    yield made
    made.close()


READING_ONLY = "anything but reading is not allowed"
TOO_BIG = "string or blob too big"
LARGE = "it needs too much memory"
LATE = "it takes more than 0.2 seconds"
BOMB = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT SUM(x) FROM c"
REFUSED = {
    BOMB: LATE,
    "SELECT COUNT(*) FROM pet a, pet b, pet c, pet d, pet e, pet f": LATE,
    "SELECT a.kind FROM pet a, pet b, pet c, pet d ORDER BY a.weight * b.weight LIMIT 1": LATE,  # keeps one row
    "SELECT CAST(zeroblob(900000) AS TEXT) FROM pet a, pet b ORDER BY a.weight * b.weight": LARGE,  # 75 rows fill it
    "SELECT zeroblob(1000000000)": TOO_BIG,
    "SELECT hex(zeroblob(900000))": TOO_BIG,
    "SELECT replace(hex(zeroblob(400000)), '00', hex(zeroblob(1000)))": TOO_BIG,
    "SELECT group_concat(hex(zeroblob(1000))) FROM pet a, pet b": TOO_BIG,
    "SELECT randomblob(1000000000)": "the function randomblob is not allowed",
    "SELECT * FROM pet ORDER BY random()": "the function random is not allowed",
    "SELECT load_extension('x')": "the function load_extension is not allowed",
    "SELECT writefile('a', 'b')": "no such function: writefile",
    "SELECT readfile('0.db')": "no such function: readfile",
    "ATTACH 'x.db' AS y": READING_ONLY,
    "ATTACH '/etc/passwd' AS y": READING_ONLY,
    "DETACH main": READING_ONLY,
    "PRAGMA table_info(pet)": READING_ONLY,
    "PRAGMA query_only = 0": READING_ONLY,
    "SELECT * FROM pragma_database_list": READING_ONLY,
    "SELECT * FROM dbstat": READING_ONLY,
    "INSERT INTO pet VALUES (99, 1, 'x', 1)": READING_ONLY,
    "WITH a AS (SELECT 1) UPDATE pet SET weight = 1": READING_ONLY,
    "DELETE FROM pet": READING_ONLY,
    "DROP TABLE pet": READING_ONLY,
    "CREATE TEMP TABLE x (a)": READING_ONLY,
    "CREATE VIRTUAL TABLE x USING fts5(a)": READING_ONLY,
    "VACUUM INTO 'x'": READING_ONLY,
    "BEGIN EXCLUSIVE": READING_ONLY,
    "SELECT 1; DROP TABLE pet": "You can only execute one statement at a time.",
    "": "this is no query that returns rows",
    "-- nothing": "this is no query that returns rows",
    "SELECT '\x00'": "the query contains a null character",
    "SELECT '\ud800'": "surrogates not allowed",
    "SELECT " + "(" * 3000 + "1" + ")" * 3000: "parser stack overflow",
    "SELECT 1" + " + 1" * 5000: "Expression tree is too large",
    "SELECT 1" + " UNION SELECT 1" * 100: "too many terms in compound SELECT",
    "SELECT '" + "x" * 60_000 + "'": "too large",
    "SELECT x'00' FROM": "incomplete input",
}


@pytest.mark.parametrize("query", REFUSED, ids=lambda query: ascii(query[:30]))
def test_hostile_query_ends_with_a_sentence(runner: QueryRunner, query: str) -> None:
    answer = runner.ask(query)
    assert isinstance(answer, QueryError)
    assert REFUSED[query] in answer.reason
    assert runner.ask("SELECT COUNT(*), SUM(weight) FROM pet") == QueryResult(
        columns=("COUNT(*)", "SUM(weight)"),
        rows=((60, 1830.0),),  # 60 * 61 / 2
    )


def test_what_sqlite_cannot_interrupt_is_ended_by_a_limit_and_the_next_query_is_answered() -> None:
    views = ", ".join(f"c{n} AS (SELECT x.a FROM c{n - 1} AS x, c{n - 1} AS y)" for n in range(1, 24))
    query = f"WITH c0 AS (SELECT 1 AS a), {views} SELECT COUNT(*) FROM c23"  # grows while it is prepared
    runner = QueryRunner([CONTENT], QueryLimits(seconds=0.05))
    answer = runner.ask(query)
    assert isinstance(answer, QueryError)
    assert answer.reason.startswith(("it was stopped by a limit: ", "it needs too much memory"))  # which comes first
    assert runner.ask("SELECT 1") == QueryResult(columns=("1",), rows=((1,),))
    runner.close()


def test_rows_and_bytes_are_bounded(runner: QueryRunner) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
    assert runner.ask(endless, rows=3) == QueryResult(columns=("x",), rows=((1,), (2,), (3,)), is_cut=True)
    wide = runner.ask("SELECT hex(zeroblob(100000)) FROM pet")
    assert isinstance(wide, QueryResult)
    assert wide.is_cut
    assert sum(len(str(row[0])) for row in wide.rows) <= 1024**2


def test_values_of_every_type_arrive(runner: QueryRunner) -> None:
    query = "SELECT NULL, 1, 2.5, 'é', x'00ff', 1e999, value FROM plain WHERE key = 'b'"
    answer = runner.ask(query)
    assert isinstance(answer, QueryResult)
    assert answer.rows == ((None, 1, 2.5, "é", b"\x00\xff", float("inf"), b"\xff"),)
    assert table_text(answer, 3).splitlines()[1] == "NULL | 1 | 2.5 | é | x'0... | inf | x'f..."


def test_tables_and_views_are_told(runner: QueryRunner) -> None:
    assert list(runner.tables()) == ["owner", "pet", "plain", "heavy"]


# ---- variants ------------------------------------------------------------------------------------------------------


def test_a_variant_has_other_rows_and_keeps_keys_references_and_rules() -> None:
    variant = guest.varied(CONTENT, 1)
    assert variant == guest.varied(CONTENT, 1) == varied_in_sandbox(CONTENT, 1)
    assert variant != guest.varied(CONTENT, 2)
    base, other = (sqlite3.connect(":memory:") for _ in range(2))
    base.deserialize(CONTENT)
    other.deserialize(variant)
    assert other.execute("SELECT COUNT(*) FROM owner").fetchone() == (16,)  # 20 less a fifth
    (pets,) = other.execute("SELECT COUNT(*) FROM pet").fetchone()
    assert 30 <= pets < 48  # 60 less a fifth, less those of owners that are gone
    assert other.execute("PRAGMA foreign_key_check").fetchall() == []
    assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    names = "SELECT id, name FROM owner"
    assert set(other.execute(names)) < set(base.execute(names))  # names are unique: they stay with their keys
    pairs = "SELECT id, weight FROM pet"
    assert not set(other.execute(pairs)) <= set(base.execute(pairs))


def test_what_is_no_database_is_an_infrastructure_failure() -> None:
    with pytest.raises(EnvFailure, match="database must be an SQLite file"):
        varied_in_sandbox(b"x" * 5000, 1)
    runner = QueryRunner([b"x" * 5000], QueryLimits())
    with pytest.raises(EnvFailure, match="database must be an SQLite file"):
        runner.tables()
    runner.close()


# ---- results -------------------------------------------------------------------------------------------------------


def rows(*given: Row, is_cut: bool = False) -> QueryResult:
    return QueryResult(columns=tuple("abcdefg"[: len(given[0]) if given else 1]), rows=given, is_cut=is_cut)


@pytest.mark.parametrize(
    "said, wanted, is_same",
    [
        (rows((1, "x"), (2, "y")), rows((2, "y"), (1, "x")), True),
        (rows((1,), (1,), (2,)), rows((1,), (2,), (2,)), False),
        (rows((3.0,)), rows((3,)), True),
        (rows((1 / 3,)), rows((0.3333333,)), True),  # 1e-7 apart, relative
        (rows((1 / 3,)), rows((0.3333,)), False),
        (rows((0.1 + 0.2, "b"), (0.3, "a")), rows((0.3, "b"), (0.30000000000000004, "a")), True),
        (rows(("3",)), rows((3,)), False),
        (rows((None,)), rows((0,)), False),
        (rows((None,)), rows((None,)), True),
        (rows((b"x",)), rows(("x",)), False),
        (rows((1, 2)), rows((2, 1)), False),
        (rows((1,), is_cut=True), rows((1,)), False),
        (rows(), rows(), True),
        (QueryResult(columns=("a", "b"), rows=()), rows(), False),
        (rows((float("inf"),)), rows((float("inf"),)), True),
        (rows((2**62,)), rows((2**62 + 1,)), False),
        (rows((10**9,)), rows((10.0**9 + 1,)), True),  # one of them is a float
    ],
)
def test_same_by_hand(said: QueryResult, wanted: QueryResult, is_same: bool) -> None:
    assert same_results(said, wanted, is_ordered=False) is is_same
    assert same_results(wanted, said, is_ordered=False) is is_same


CELLS = st.none() | st.integers(-5, 5) | st.floats(-5, 5) | st.sampled_from(["", "a", "b"]) | st.binary(max_size=2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS), max_size=8), st.randoms(use_true_random=False))
def test_order_counts_only_where_it_is_asked_for(given_rows: list[Row], draw: random.Random) -> None:
    shuffled = list(given_rows)
    draw.shuffle(shuffled)
    one, other = (QueryResult(columns=("a", "b"), rows=tuple(item)) for item in (given_rows, shuffled))
    assert same_results(one, other, is_ordered=False)
    assert same_results(one, one, is_ordered=True)
    assert overlap(one, other) == (1.0 if given_rows else 0.0)
    if given_rows:
        shorter = QueryResult(columns=("a", "b"), rows=tuple(shuffled[1:]))
        assert not same_results(one, shorter, is_ordered=False)
        assert overlap(one, shorter) < 1.0
