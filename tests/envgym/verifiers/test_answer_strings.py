"""Answers as models write them, with the verdict that each should get: no wrong answer is accepted."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from envgym.core.tasks import Split, Task
from envgym.envs.math._judging import WorkedOut
from envgym.envs.search.qa import WordMatch
from envgym.verifiers import F1, Exact, Math, MultipleChoice, Numeric, Verifier
from envgym.verifiers.extract import Extractor, Tagged, after_hashes, boxed, final, last_line, whole_answer
from envgym.verifiers.numbers import read_numbers

Row = Mapping[str, Any]  # Any: decoded JSON

DATA = Path(__file__).with_name("data")
ROWS: list[Row] = [
    {"line": f"{path.stem}:{number}", **json.loads(line)}
    for path in sorted(DATA.glob("*.jsonl"))
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
]
EXTRACTORS: Mapping[str, Extractor] = {
    "whole_answer": whole_answer,
    "last_line": last_line,
    "boxed": boxed,
    "tagged": Tagged(),
    "after_hashes": after_hashes,
    "final": final,
}
VERIFIERS: Mapping[str, Callable[..., Verifier]] = {
    "exact": Exact,
    "f1": F1,
    "math": Math,
    "multiple_choice": MultipleChoice,
    "numeric": Numeric,
    "word_match": WordMatch,
    "worked_out": lambda **settings: WorkedOut(math=Math(worked_out=True), **settings),
}
FIELDS = {"line", "family", "verifier", "settings", "key", "options", "answer", "expected", "note", "documented_miss"}


def score(row: Row) -> float:
    settings = dict(row.get("settings", {}))
    if "extract" in settings:
        settings["extract"] = EXTRACTORS[settings["extract"]]
    verifier = VERIFIERS[row["verifier"]](**settings)
    answers = row["key"] if isinstance(row["key"], list) else [row["key"]]
    payload = {"answer": row["key"], "answers": answers, "options": row.get("options", [])}
    return verifier(row["answer"], Task(id=row["line"], prompt="", payload=payload, split=Split.TRAIN)).score


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['line']}-{row['verifier']}" for row in ROWS])
def test_an_answer_gets_its_verdict(row: Row) -> None:
    reached = score(row)
    assert reached <= row["expected"] + 1e-9, "a wrong answer is accepted"
    if "documented_miss" in row:
        assert reached < row["expected"], "the answer is accepted now: drop documented_miss"
    else:
        assert reached == pytest.approx(row["expected"], abs=1e-9)


def test_rows_are_of_many_families_and_both_verdicts_and_every_miss_has_a_reason() -> None:
    assert len(ROWS) >= 300
    assert all(set(row) <= FIELDS and row["family"] for row in ROWS)
    assert all(len(row.get("documented_miss", "a reason")) > 5 for row in ROWS)
    families = Counter(row["family"] for row in ROWS)
    assert sum(count >= 15 for count in families.values()) >= 6
    for verifier in VERIFIERS:
        expected = [row["expected"] for row in ROWS if row["verifier"] == verifier]
        assert sum(value == 1 for value in expected) >= 10
        assert sum(value < 1 for value in expected) >= 10


HOSTILE = [
    "<answer>", "<answer>1</answer>", "\\boxed{", "\\boxed{1}", "#### 1\n", "### Answer:\n", "<think>", "</think>", "9",
    "9 ", "1,111", "- ", "5!", "½", "²", "\\text{a}^2", "\u00d710", "A ", "not A ", "C++ ", "_", "**", " ", "\n",
    "\u201c", "Answer: ", "9 (wrong ", "9 is not ",
]  # fmt: skip
NESTED = [
    "\\boxed{" * 40_000 + "}" * 40_000,
    "<answer>" * 25_000 + "</answer>" * 25_000,
    "<answer>\\boxed{}</answer>" * 8_000,
]


@pytest.mark.parametrize(
    "text", [(unit * 200_000)[:200_000] for unit in HOSTILE] + NESTED, ids=lambda text: repr(text[:12])
)
@pytest.mark.timeout(60)  # it takes a second or two; were it quadratic, minutes
def test_a_long_hostile_text_is_judged_without_going_back_and_forth(text: str) -> None:
    task = Task(id="t", prompt="", payload={"answer": "A", "options": ["A cat", "12"]}, split=Split.TRAIN)
    number = Task(id="t", prompt="", payload={"answer": "7", "answers": ["7"]}, split=Split.TRAIN)
    verifiers: list[Verifier] = [
        Exact(extract=final, ignore_punctuation=True),
        F1(extract=final),
        WordMatch(),
        Numeric(),
    ]
    assert [verifier(text, number).score for verifier in verifiers] == [0.0] * 4
    assert MultipleChoice()(text, task).score == 0.0
    assert len(read_numbers(text)) <= len(text) + 1
