"""Verifiers from settings: every one of the table, with values as their types have them, and what is refused."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from envgym import Split, Task
from envgym.errors import InvalidInput
from envgym.verifiers import (
    F1,
    Exact,
    GenerativeVerifier,
    JsonSchema,
    LlmJudge,
    Math,
    MultipleChoice,
    Noisy,
    Numeric,
    Pattern,
    Take,
    ToolCallMatch,
    Verifier,
)
from envgym.verifiers.base import VERIFIER
from envgym.verifiers.extract import Tagged, boxed, final, last_line
from envgym.verifiers.settings import EXTRACTORS, mark_answer, read_verifier

ENDPOINT = {"name": "endpoint", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
EQUAL: list[tuple[Any, Verifier]] = [
    ("exact", Exact()),
    ({"name": "exact", "extract": "last_line", "ignore_case": True}, Exact(extract=last_line, ignore_case=True)),
    ({"name": "exact", "extract": "tagged"}, Exact(extract=Tagged())),
    (
        {"name": "numeric", "take": "last", "units": ["cm", "m"], "rel_tol": 0.5, "extract": "boxed"},
        Numeric(take=Take.LAST, units=("cm", "m"), rel_tol=0.5, extract=boxed),
    ),
    ("multiple_choice", MultipleChoice()),
    ({"name": "f1", "extract": "final"}, F1(extract=final)),
    ({"name": "pattern", "pattern": "x+", "cpu_s": None}, Pattern(pattern="x+", cpu_s=None)),
    ({"name": "json_schema", "schema": {"type": "object"}}, JsonSchema(schema={"type": "object"})),
    ({"name": "math", "cpu_s": 2, "worked_out": True}, Math(cpu_s=2, worked_out=True)),
    ({"name": "tool_call", "format_weight": 0}, ToolCallMatch(format_weight=0.0)),
    (
        {"name": "noisy", "verifier": {"name": "noisy", "verifier": "exact"}, "false_positive": 0.5},
        Noisy(verifier=Noisy(verifier=Exact()), false_positive=0.5),
    ),
]


@pytest.mark.parametrize("settings, verifier", EQUAL)
def test_settings_give_the_verifier_that_python_gives(settings: object, verifier: Verifier) -> None:
    read = read_verifier(settings, where="x")
    assert read == verifier
    assert pickle.loads(pickle.dumps(read)) == verifier


def test_judges_are_parties_with_settings_of_their_own() -> None:
    judge = read_verifier({"name": "llm_judge", "judge": ENDPOINT, "scale": [1, 10]}, where="x")
    assert isinstance(judge, LlmJudge)
    assert judge.scale == (1.0, 10.0)
    assert type(judge.judge).__name__ == "EndpointParty"
    assert isinstance(read_verifier({"name": "generative", "judge": ENDPOINT}, where="x"), GenerativeVerifier)


def test_every_verifier_of_the_table_is_made_here() -> None:
    names = {settings if isinstance(settings, str) else settings["name"] for settings, _ in EQUAL}
    assert names | {"llm_judge", "generative"} == set(VERIFIER.table)


def test_every_extractor_finds_the_answer_that_it_names() -> None:
    texts = {
        "after_hashes": "#### 7",
        "answer_line": "So it is.\n**Answer:** 7",
        "boxed": "\\boxed{7}",
        "final": "<answer>7</answer>",
        "last_line": "so\n7",
        "tagged": "<answer>7</answer>",
        "whole_answer": " 7 ",
    }
    assert {name: EXTRACTORS[name](text).answer for name, text in texts.items()} == dict.fromkeys(EXTRACTORS, "7")


@pytest.mark.parametrize("name", EXTRACTORS)
def test_marked_answer_is_the_one_that_is_found(name: str) -> None:
    verifier = read_verifier({"name": "noisy", "verifier": {"name": "exact", "extract": name}}, where="x")
    assert EXTRACTORS[name](mark_answer(verifier, "x{1}")).answer == "x{1}"


def test_file_of_the_user_may_hold_a_class_or_a_function(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from envgym.verifiers import right, wrong, Verdict\n"
        "from envgym import Task\n"
        "def score(answer: str, task: Task) -> Verdict:\n"
        "    return right() if answer == 'a' else wrong('no')\n"
        "class Own:\n"
        "    def __init__(self, *, word: str, times: int = 1) -> None:\n"
        "        self.word, self.times = word, times\n"
        "    def __call__(self, answer: str, task: Task) -> Verdict:\n"
        "        return right() if answer == self.word * self.times else wrong('no')\n"
    )
    task = Task(id="train/0", prompt="?", payload={}, split=Split.TRAIN)
    assert read_verifier(f"{path}:score", where="x")("a", task).score == 1.0
    own = read_verifier({"name": f"{path}:Own", "word": "ab", "times": "2"}, where="x")
    assert [own(answer, task).score for answer in ("abab", "ab")] == [1.0, 0.0]
    with pytest.raises(InvalidInput, match="word must be set, got nothing"):
        read_verifier(f"{path}:Own", where="x")
    with pytest.raises(InvalidInput, match=r"settings must be left out .* got take"):
        read_verifier({"name": f"{path}:score", "take": "last"}, where="x")


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ("exct", r"verifier must be a known name, got 'exct' \(data of x\); did you mean exact\?"),
        (3, r"plug-in must be a name, or a mapping with a name, got 3 \(data of x\); write a name"),
        ({"take": "last"}, r"name must be set, got nothing \(data of x\)"),
        ({"name": "numeric", "tke": "last"}, r"setting must be a known name, got 'tke' .*did you mean take"),
        ({"name": "numeric", "take": "lst"}, r"take must be 'only' or 'last', got lst \(verifier numeric\)"),
        ({"name": "math", "cpu_s": "many"}, "cpu_s must be a whole number, got many"),
        ({"name": "numeric", "units": "cm"}, "units must be a list, got cm"),
        ({"name": "exact", "extract": "box"}, r"extract must be a known name, got 'box' .*did you mean boxed\?"),
        ({"name": "exact", "extract": ["boxed"]}, "extract must be a known name"),
        ({"name": "noisy"}, r"verifier must be set, got nothing \(verifier noisy\); add verifier to its settings"),
        ({"name": "noisy", "verifier": "exct"}, r"'exct' \(verifier of verifier noisy\); did you mean exact"),
        (
            {"name": "llm_judge", "judge": "endpont"},
            r"party must be a known name, got 'endpont' \(judge of ",
        ),
        ({"name": "llm_judge", "judge": "endpoint"}, "base_url must be set, got nothing"),
        ({"name": "pattern", "pattern": "("}, "pattern must be a regular expression"),
        ({"name": "noisy", "verifier": "exact", "false_positive": 3}, r"false_positive must lie in \[0, 1\], got 3"),
        ("nowhere.py:score", "verifier.name must name an importable class, got nowhere.py:score"),
    ],
)
def test_bad_settings_are_one_clear_sentence(settings: object, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        read_verifier(settings, where="data of x")
