"""Answers as models write them: the code that counts is found, whatever stands beside it."""

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgym.envs.code._answers import read_function, read_program, read_query
from envgym.envs.code._languages import language, names
from envgym.envs.math._coq_text import read_proof, read_tactic

Answers = Mapping[str, Mapping[str, str]]
ANSWERS: Answers = yaml.safe_load((Path(__file__).parent / "data/answers.yaml").read_text(encoding="utf-8"))
PROMPT = 'def add(a, b):\n    """Add."""\n'
PYTHON = language("python")


def cases(kind: str) -> Iterator[Any]:
    """Yield each answer as it is, with lines that end in CRLF, and after a sentence with inline code."""
    for name, text in ANSWERS[kind].items():
        yield pytest.param(text, id=name)
        yield pytest.param(text.replace("\n", "\r\n"), id=f"{name}, CRLF")
        if not text.startswith(" "):
            yield pytest.param(f"I use `x` and ``y``.\n\n{text}", id=f"{name}, after text")


def printed(program: str, given: str) -> str:
    """Run one of the programs above here."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "stdin", io.StringIO(given))
        patch.setattr("builtins.open", lambda *_: io.StringIO(given))
        exec(program, {"__name__": "__main__"})
    return output.getvalue()


@pytest.mark.parametrize("text", [*cases("function")])
def test_the_function_of_an_answer_is_found(text: str) -> None:
    program = read_function(text, "add", PROMPT)
    assert program is not None
    space: dict[str, Any] = {"__name__": "tests"}
    exec(program, space)
    assert space["add"](2, 3) == 5


@pytest.mark.parametrize("text", [*cases("program")])
def test_the_program_of_an_answer_is_found(text: str) -> None:
    program = read_program(text, "python", PYTHON)
    assert program is not None
    assert printed(program, "2 3\n") == "5\n"


@pytest.mark.parametrize("text", [*cases("query")])
def test_the_query_of_an_answer_is_found(text: str) -> None:
    query = read_query(text)
    assert query is not None
    assert " ".join(query.split()).lower() == "select name from people"


@pytest.mark.parametrize("text", [*cases("proof")])
def test_the_proof_of_an_answer_is_found(text: str) -> None:
    assert read_proof(text, automation=False) == ("1: ( intros n ).",) == read_tactic(text, automation=False)


def test_a_whole_proof_counts_before_a_command_after_it() -> None:
    text = "```coq\nTheorem t : x. Proof. intros n. Qed.\n```\n```coq\nPrint Assumptions t.\n```"
    assert read_proof(text, automation=False) == ("1: ( intros n ).",)


@pytest.mark.parametrize(
    "text, query",
    [
        ("```sql\nSELECT 1\n```\nor\n```\nSELECT 2;\n```", "SELECT 2"),
        (
            "SELECT a FROM (\n  SELECT b FROM t\n) WHERE c = 'x; y';\nDone.",
            "SELECT a FROM (\n  SELECT b FROM t\n) WHERE c = 'x; y'",
        ),
        ("SELECT a\n\nFROM t\n\nORDER BY a\n\nThat is it", "SELECT a\n\nFROM t\n\nORDER BY a"),
        ("SELECT `a`\nFROM `t`", "SELECT `a`\nFROM `t`"),
        (
            "With these tables in mind:\n\nWITH x AS (SELECT 1)\nSELECT * FROM x;",
            "WITH x AS (SELECT 1)\nSELECT * FROM x",
        ),
        ("```sql\n-- names\nSELECT 1\n```", "-- names\nSELECT 1"),
        ("<answer>SELECT 1</answer>", "SELECT 1"),
        ("<sql>\nSELECT a FROM t;\n</sql>", "SELECT a FROM t"),
        ("<answer>SELECT 1;</answer>", "SELECT 1"),
        ("SELECT a FROM t WHERE a < 3", "SELECT a FROM t WHERE a < 3"),
        ("I would say SELECT 1", None),
        ("```sql\n\n```", None),
        ("", None),
    ],
)
def test_queries_with_and_without_blocks(text: str, query: str | None) -> None:
    assert read_query(text) == query


@pytest.mark.parametrize(
    "text, code",
    [
        ("```python\ndef add(): 1\n```\n```\nadd()\n```", "def add(): 1"),
        ("```python\ndef plus(): 1\n```", None),
        ("I cannot.", None),
        ("", None),
        ("   ", None),
        ("```", None),
    ],
)
def test_an_answer_without_the_function_has_no_program(text: str, code: str | None) -> None:
    assert read_function(text, "add", PROMPT) == code


@pytest.mark.parametrize("name", names())
def test_the_marked_block_that_reads_the_input_counts_in_every_language(name: str) -> None:
    chosen = language(name)
    program = chosen.program_of([{"input": "1", "output": "2"}])
    text = f"```text\nplan\n```\n```{name}\n{program}\n```\nRun it:\n```{name}\n./main.sh\n```\nOutput:\n```\n2\n```"
    assert read_program(text, name, chosen) == program


HOSTILE = [
    "```" * 20_000,
    "```\n" * 20_000,
    "```python\n" * 20_000,
    "x```python\n" * 10_000,
    "> " * 20_000 + "```",
    "1. " * 20_000 + "```",
    "import x\n" * 10_000 + "(" * 10_000,
    "def f(:\n" * 10_000,
    "SELECT " * 20_000,
    "SELECT (\n\n" * 10_000,
    "with a (" * 10_000,
    "/*" * 30_000,
    "`" * 60_000 + "x",
    "sqlite>" * 10_000,
    " " * 60_000 + "x",
    "\n" * 60_000 + "x",
    ("```python\n" + "(" * 300 + "\n```\n") * 300,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_are_read_in_time_that_grows_with_their_length(text: str) -> None:
    readers: list[Callable[[str], object]] = [
        lambda part: read_function(part, "add", PROMPT),
        lambda part: read_program(part, "python", PYTHON),
        read_query,
    ]
    for reader in readers:
        start = time.process_time()
        reader(text)
        assert time.process_time() - start < 3.0
