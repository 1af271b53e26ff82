"""Tasks of rows in memory, their split by share, and rows that are left out because they break a rule."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from envgym.authoring import FileTasks, TaskDraft
from envgym.core.tasks import Split
from envgym.errors import InvalidInput, UnknownName
from tests.envgym.authoring.test_files import QUESTION, Rows, jsonl, rows, write


def ids_of(source: FileTasks) -> dict[str, str]:
    return {source.task(s, i).prompt: s.value for s in Split for i in range(source.size(s))}


def test_rows_in_memory_give_the_tasks_of_a_file(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    content = rows(40)
    sources = [
        FileTasks(jsonl(tmp_path / "a.jsonl", content), QUESTION),
        FileTasks(content, QUESTION),
        FileTasks(tuple(content), QUESTION),
        FileTasks(datasets.Dataset.from_list(list(content)), QUESTION),
        FileTasks(datasets.Dataset.from_list(list(content)).with_format("numpy"), QUESTION),
        FileTasks({"train": content}, QUESTION),
    ]
    sides = [[source.task(split, i) for split in Split for i in range(source.size(split))] for source in sources]
    assert all(tasks == sides[0] for tasks in sides)
    assert len(sides[0]) == 40


def test_splits_in_memory_are_official_as_those_of_a_data_set_are() -> None:
    datasets = pytest.importorskip("datasets")
    tables = {"train": rows(10), "validation": rows(3, 20), "test": rows(5, 30)}
    both = datasets.DatasetDict({name: datasets.Dataset.from_list(list(table)) for name, table in tables.items()})
    for source in (FileTasks(tables, QUESTION), FileTasks(both, QUESTION)):
        assert (source.size(Split.TRAIN), source.size(Split.TEST)) == (10, 5)
    with pytest.raises(InvalidInput, match=r"split of the data set must have a usual name .* got hard"):
        FileTasks({"train": rows(3), "hard": rows(3, 5)}, QUESTION).size(Split.TRAIN)


def test_rows_in_memory_survive_pickling_and_name_themselves() -> None:
    source = pickle.loads(pickle.dumps(FileTasks(rows(20), QUESTION)))
    assert ids_of(source) == ids_of(FileTasks(rows(20), QUESTION))
    assert source.name == "the rows in memory"
    assert source.current() is source
    with pytest.raises(InvalidInput, match=r"index must lie in \[0, .*, got 99 \(train of the rows in memory\)"):
        source.task(Split.TRAIN, 99)


@pytest.mark.parametrize(
    "source, sentence",
    [
        (
            iter(rows(3)),
            "source must be a file, a name, a list of dicts or a datasets.Dataset, got list_iterator",
        ),
        (3, "source must be a file, a name, a list of dicts or a datasets.Dataset, got int"),
        (
            ["1?"],
            r"row must be a mapping from columns to values, got 1\? \(row 0 of the rows in memory\); pass a list of",
        ),
        ({"train": [None]}, r"row must be a mapping from columns to values, got None \(row 0 of train\)"),
        ({"question": "1?", "result": "2"}, "split must be a known name, got 'question'"),
        ([{"quesion": "1?", "result": 1}], r"got 'question' \(row 0 of the rows in memory\); did you mean quesion"),
    ],
)
def test_rows_in_memory_that_are_none_are_refused(source: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        FileTasks(source, QUESTION).size(Split.TRAIN)


def test_streamed_data_set_is_refused_in_one_sentence() -> None:
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_list(list(rows(3))).to_iterable_dataset()
    with pytest.raises(InvalidInput, match=r"got IterableDataset .*; pass list\(rows\), or load without streaming"):
        FileTasks(stream, QUESTION).size(Split.TRAIN)


# ---- split by share --------------------------------------------------------------------------------------------------


def test_task_stays_on_its_side_when_rows_are_added() -> None:
    few = ids_of(FileTasks(rows(50), QUESTION, test_share=0.3, split_seed=4))
    many = ids_of(FileTasks([*rows(50, 100), *rows(50)], QUESTION, test_share=0.3, split_seed=4))
    assert {prompt: many[prompt] for prompt in few} == few


def test_larger_share_keeps_every_test_task_and_a_seed_draws_another_split() -> None:
    sides = [ids_of(FileTasks(rows(400), QUESTION, test_share=share)) for share in (0.0, 0.05, 0.2, 0.5, 1.0)]
    tests = [{prompt for prompt, side in side.items() if side == "test"} for side in sides]
    assert [len(test) for test in tests] == [0, 19, 77, 201, 400]
    assert all(small <= large for small, large in pairwise(tests))
    assert sides[2] == ids_of(FileTasks(rows(400), QUESTION)), "a fifth is the default"
    other = ids_of(FileTasks(rows(400), QUESTION, test_share=0.5, split_seed=1))
    assert 70 < sum(other[prompt] == "test" for prompt in tests[3]) < 130  # about half of 201


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_share_outside_the_unit_interval_is_refused(share: float) -> None:
    with pytest.raises(InvalidInput, match=r"test_share must lie in \[0, 1\], got"):
        FileTasks(rows(3), QUESTION, test_share=share)


def test_share_beside_official_splits_is_refused() -> None:
    message = r"test_share must be left out where rows have official splits, got 0.1 .*; leave it out, or"
    sources: tuple[Mapping[str, Rows], ...] = ({"train": rows(3), "test": rows(2, 5)}, {"test": rows(3)})
    for source in sources:
        with pytest.raises(InvalidInput, match=message):
            FileTasks(source, QUESTION, test_share=0.1).size(Split.TRAIN)
    with pytest.raises(InvalidInput, match=message):
        FileTasks([{**rows(1)[0], "s": "train"}], replace(QUESTION, split="s"), test_share=0.1).size(Split.TRAIN)


# ---- bad rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, lines, rule",
    [
        ("a.jsonl", ['{"q": "1", "a": "1"}', "{oh", "[1]", '{"q": "2", "a": "2"}'], "line must be one JSON object (2)"),
        ("a.csv", ["q,a", "1,1", "3", "1,2,3", "2,2"], "line must have 2 cells as the header (2)"),
    ],
)
def test_lines_that_are_no_rows_are_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, lines: list[str], rule: str
) -> None:
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    source, columns = str(tmp_path / name), {"prompt": "q", "answer": "a"}
    tasks = FileTasks(source, columns, on_bad_row="skip")
    assert sorted(tasks.task(split, n).prompt for split in Split for n in range(tasks.size(split))) == ["1", "2"]
    assert f"2 of 4 rows of {source} are left out: {rule}." in caplog.text
    with pytest.raises(InvalidInput, match=rf"line must .* \(line \d of .*{name}\)"):
        FileTasks(source, columns).size(Split.TRAIN)


def test_bad_rows_are_skipped_and_counted_by_reason(caplog: pytest.LogCaptureFixture) -> None:
    bad: Rows = [{"question": 3, "result": 1, "level": 0}, {"result": 1}, {"question": None, "result": 1, "level": 0}]
    source = FileTasks([*rows(5), *bad], QUESTION, on_bad_row="skip")
    assert source.size(Split.TRAIN) + source.size(Split.TEST) == 5
    assert (
        "3 of 8 rows of the rows in memory are left out: column 'question' must hold text or a list of messages (2), "
        in caplog.text
    )
    with pytest.raises(InvalidInput, match=r"got 3 \(row 5 of the rows in memory\)"):
        FileTasks([*rows(5), *bad], QUESTION).size(Split.TRAIN)
    with pytest.raises(InvalidInput, match=r"rows must .*none of 3 rows of the rows in memory is left"):
        FileTasks(bad, QUESTION, on_bad_row="skip").size(Split.TRAIN)
    with pytest.raises(UnknownName, match=r"on_bad_row must be a known name, got 'skp'.*did you mean skip"):
        FileTasks(bad, QUESTION, on_bad_row="skp")  # type: ignore[arg-type]  # what is tested


# ---- files of columns ------------------------------------------------------------------------------------------------


def test_columns_that_are_not_named_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = [{**row, "info": {"a": {"b": n}, "c": n}, "blob": "x" * 1000, "a.b": n} for n, row in enumerate(rows(9))]
    columns = replace(QUESTION, payload={"answer": "info.a.b"}, metadata=("info.c", "level"))
    expected = FileTasks(content, columns)
    requested: list[list[str]] = []
    read_batches = parquet.ParquetFile.iter_batches

    def note_columns(file: parquet.ParquetFile, columns: list[str]) -> Any:  # pyarrow has no types
        requested.append(columns)
        return read_batches(file, columns=columns)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", note_columns)
    table = [{name: value for name, value in row.items() if name != "a.b"} for row in content]
    source = FileTasks(write(tmp_path / "a.parquet", table), columns)
    for split in Split:
        tasks = [source.task(split, index) for index in range(source.size(split))]
        assert tasks == [expected.task(split, index) for index in range(expected.size(split))]
    assert requested == [["question", "level", "info"]]
    with pytest.raises(UnknownName, match=r"be one of question, result, level, info\.a, info\.c, blob, got 'infos.c'"):
        FileTasks(tmp_path / "a.parquet", replace(columns, metadata=("infos.c",))).size(Split.TRAIN)
    named = FileTasks(write(tmp_path / "b.parquet", content), replace(columns, metadata=("a.b",)))
    assert {named.task(s, i).metadata["a.b"] for s in Split for i in range(named.size(s))} == set(range(9))


def test_columns_of_a_data_set_that_are_not_named_are_not_read() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([{**row, "blob": "x"} for row in rows(9)])
    table.set_transform(lambda batch: pytest.fail("its transform is for training"))
    assert ids_of(FileTasks(table, QUESTION)) == ids_of(FileTasks(rows(9), QUESTION))
    everything = FileTasks(table, lambda row: TaskDraft(prompt=row["question"], payload={"blob": row["blob"], **row}))
    assert sum(everything.size(split) for split in Split) == 9
