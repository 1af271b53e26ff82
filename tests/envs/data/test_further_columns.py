"""Columns of data files that no field reads: they become metadata, hidden from agents, and change no task."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envgym.authoring import FileTasks
from envgym.authoring.columns import EVERY, ColumnNames, column_names, named_columns
from envgym.core.messages import text_of
from envgym.core.task_needs import metadata_text
from envgym.core.tasks import Split, Task
from envgym.env import Env
from envgym.envs.data.file import DataFile
from envgym.envs.math.problems import Problems
from envgym.envs.search.qa import OpenQa
from envgym.errors import InvalidInput
from tests.support.public_rows import ROWS, PublicRow, Row

MakeEnv = Callable[..., Env[Any]]
"""Makes an env from a folder, a data file or one per split, and settings."""
HINT = "MARKED: think of seven."
PROBLEMS: Mapping[str, tuple[str, set[str]]] = {
    "gsm8k": ("gsm8k", {"answer"}),
    "math": ("math", {"level", "type", "solution"}),
    "math500": ("math500", {"solution", "unique_id"}),
    "deepscaler": ("deepscaler", set()),
    "openr1": ("plain", {"solution", "problem_type", "generations", "correctness_math_verify", "messages"}),
    "big-math": ("plain", {"source", "domain", "solve_rate"}),
    "openmathinstruct": ("plain", {"generated_solution"}),
}
"""Data set -> preset and the columns of the metadata; an answer inside a longer text stays whole there.

The solution in the row of deepscaler is empty.
"""
QUESTIONS: Mapping[str, set[str]] = {
    "hotpotqa": {"id", "type", "level"},
    "squad": {"id", "title"},
    "triviaqa": set(),
    "nq_open": set(),
}


def written(row: Row, folder: Path, name: str) -> str:
    path = folder / f"{name}.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    return str(path)


def all_tasks(env: Env[Any]) -> list[Task]:
    return [env.tasks.task(split, index) for split in Split for index in range(env.tasks.size(split) or 0)]


def only_task(env: Env[Any]) -> Task:
    [task] = all_tasks(env)
    return task


def check_further_columns(make: Callable[[str], Env[Any]], row: Row, names: set[str], folder: Path) -> None:
    """Check the metadata of a row's task, and that a further column changes and shows nothing."""
    plain = only_task(make(written(row, folder, "plain")))
    assert {name: plain.metadata[name] for name in plain.metadata if name != "num_facts"} == {
        name: row[name] for name in names
    }
    env = make(written({**row, "hint": HINT}, folder, "hinted"))
    task = only_task(env)
    assert task.metadata == {**plain.metadata, "hint": HINT}
    assert (task.key, task.prompt) == (plain.key, plain.prompt)
    record = env.reset(options={"task": task}).info["envgym"]
    shown = [record.system_prompt, *map(text_of, record.observation.messages), *map(repr, record.tools)]
    assert not any("MARKED" in text for text in shown)


def open_qa(folder: Path, data: str | Mapping[str, str], **options: Any) -> Env[Any]:
    pytest.importorskip("bm25s")
    corpus = folder / "wiki.jsonl"
    corpus.write_text('{"id": "1", "contents": "Ada\\nShe wrote."}', encoding="utf-8")
    return OpenQa(data=data, corpus=str(corpus), **options)


def problems(folder: Path, data: str | Mapping[str, str], **options: Any) -> Env[Any]:
    return Problems(data=data, **options)


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_sets_keep_their_other_columns_as_metadata(name: str, tmp_path: Path) -> None:
    preset, names = PROBLEMS[name]
    check_further_columns(lambda data: Problems(data=data, preset=preset), ROWS[name].row, names, tmp_path)


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_keep_their_other_columns_as_metadata(name: str, tmp_path: Path) -> None:
    check_further_columns(partial(open_qa, tmp_path), ROWS[name].row, QUESTIONS[name], tmp_path)


@pytest.mark.parametrize("public", [pytest.param(public, id=name) for name, public in ROWS.items()])
def test_every_column_that_no_field_reads_is_metadata_by_a_star(public: PublicRow) -> None:
    columns = {**public.columns, "metadata": EVERY}
    task = FileTasks({"train": [public.row], "test": []}, columns).task(Split.TRAIN, 0)
    read = {"prompt", *(column for field, column in columns.items() if field != "metadata")} - (
        {"prompt"} if "prompt" in columns else set()
    )
    assert task.metadata == {
        name: value for name, value in public.row.items() if name not in read and value not in (None, "")
    }
    without = FileTasks({"train": [public.row], "test": []}, public.columns).task(Split.TRAIN, 0)
    assert (task.key, task.prompt) == (without.key, without.prompt)


def test_a_star_leaves_out_what_is_no_json_and_a_column_that_is_named_must_be() -> None:
    row = {"prompt": "?", "answer": "1", "day": date(2024, 1, 1), "share": float("nan"), "image": b"x", "level": 2}
    rows = {"train": [row], "test": []}
    assert FileTasks(rows, {"answer": "answer", "metadata": EVERY}).task(Split.TRAIN, 0).metadata == {"level": 2}
    with pytest.raises(InvalidInput, match="payload and metadata must be JSON"):
        FileTasks(rows, {"answer": "answer", "metadata": "day"}).task(Split.TRAIN, 0)


@pytest.mark.parametrize("metadata", [EVERY, ["hint", "note"]])
def test_cells_that_hold_nothing_are_no_metadata(metadata: str | list[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("question,answer,hint,note\n1 + 1?,2,Count.,\n1 + 2?,3,, \n1 + 3?,4,Add.,x\n", encoding="utf-8")
    tasks = all_tasks(Problems(data=str(path), columns={"metadata": metadata}))
    expected = {"2": {"hint": "Count."}, "3": {}, "4": {"hint": "Add.", "note": "x"}}
    assert {task.payload["answer"]: task.metadata for task in tasks} == expected
    hints = {task.payload["answer"]: metadata_text(task, "hint") for task in tasks}
    assert hints == {"2": "Count.", "3": None, "4": "Add."}
    rows = {"train": [{"prompt": "?", "answer": "1", "hint": None}], "test": []}
    assert FileTasks(rows, {"answer": "answer", "metadata": "hint"}).task(Split.TRAIN, 0).metadata == {}


@pytest.mark.parametrize("make", [problems, open_qa])
def test_a_column_prompt_is_metadata_unless_it_is_the_question(make: MakeEnv, tmp_path: Path) -> None:
    row = {"answer": "4", "prompt": "Think of 2 + 2."}
    env = make(tmp_path, written({**row, "question": "What is 2 + 2?"}, tmp_path, "both"))
    assert only_task(env).metadata.get("prompt") == "Think of 2 + 2."
    assert only_task(Problems(data=written(row, tmp_path, "prompt"))).metadata == {}


@pytest.mark.parametrize("make", [problems, open_qa])
def test_a_further_field_of_the_payload_moves_no_task_to_another_split(make: MakeEnv, tmp_path: Path) -> None:
    def file(side: str, numbers: range) -> str:
        rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1), "steps": f"{side} {n}"} for n in numbers]
        path = tmp_path / f"{side}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return str(path)

    def questions(data: str | Mapping[str, str], columns: Mapping[str, str] | None) -> list[tuple[Any, Split]]:
        return [(task.payload["question"], task.split) for task in all_tasks(make(tmp_path, data, columns=columns))]

    official = {"train": file("train", range(4)), "test": file("test", range(2, 4))}
    expected = [(f"What is {n} + 1?", Split.TRAIN if n < 2 else Split.TEST) for n in range(4)]
    assert questions(official, {"subproblems": "steps"}) == questions(official, None) == expected
    one = file("one", range(40))
    by_content = questions(one, None)
    assert questions(one, {"subproblems": "steps"}) == by_content
    assert {split for _, split in by_content} == set(Split)


def test_metadata_names_several_columns_and_their_paths() -> None:
    names = column_names({"metadata": ["level", "info.hint"], "answer": "key"})
    assert names == ColumnNames(payload={"answer": "key"}, metadata=("level", "info.hint"))
    assert named_columns(names) == frozenset({"prompt", "key", "level", "info.hint"})
    assert named_columns(replace(names, metadata=(EVERY,))) is None
    row = {"prompt": "?", "key": "1", "level": 1, "info": {"hint": "Count."}, "other": 2}
    assert FileTasks({"train": [row], "test": []}, names).task(Split.TRAIN, 0).metadata == {
        "level": 1,
        "info.hint": "Count.",
    }


def test_columns_of_a_problem_set_choose_metadata_and_fill_the_payload(tmp_path: Path) -> None:
    sub = [{"prompt": "What is 1 + 1?", "payload": {"answer": "2"}}]
    row = {"problem": "What is 2 + 2?", "answer": "4", "steps": sub, "difficulty": 0.5, "topic": "sums"}
    data = written(row, tmp_path, "steps")
    task = only_task(Problems(data=data, columns={"subproblems": "steps", "metadata": ["difficulty"]}))
    assert task.payload == {"question": "What is 2 + 2?", "answer": "4", "subproblems": sub}
    assert task.metadata == {"difficulty": 0.5}
    assert only_task(Problems(data=data, columns={"subproblems": "steps"})).metadata == {
        "difficulty": 0.5,
        "topic": "sums",
    }


@pytest.mark.parametrize(
    "columns, sentence",
    [
        ({"answer": "x"}, "columns must name metadata or a further field of the payload, got answer"),
        ({"split": "x"}, "columns must name metadata or a further field of the payload, got split"),
        ({"metadata": {"a": "b"}}, r"columns\['metadata'\] must be the name of a column, or a list of names"),
        ({"steps": ["a"]}, r"columns\['steps'\] must be the name of a column"),
    ],
)
def test_other_columns_of_a_problem_set_are_refused(columns: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        Problems(data=written({"problem": "?", "answer": "4"}, tmp_path, "rows"), columns=columns)


def test_columns_without_data_are_refused() -> None:
    with pytest.raises(InvalidInput, match="columns must be left out without data"):
        Problems(columns={"metadata": EVERY})


def test_a_data_file_takes_a_star_and_a_list(tmp_path: Path) -> None:
    data = written({"question": "2 + 2?", "answer": "4", "hint": "Count.", "level": 1}, tmp_path, "rows")
    for metadata, expected in ((EVERY, {"hint": "Count.", "level": 1}), (["level"], {"level": 1})):
        columns = {"prompt": "question", "answer": "answer", "metadata": metadata}
        assert only_task(DataFile(data=data, columns=columns, verifier="numeric")).metadata == expected
