"""Tasks from files: columns, official splits, and what is refused in one sentence."""

import json
import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from envgym.authoring import ColumnNames, FileTasks, TaskDraft
from envgym.authoring.tables import Row
from envgym.core.tasks import Split, split_of
from envgym.errors import InvalidInput, UnknownName

Rows = Sequence[dict[str, Any]]  # what a test puts into a file
QUESTION = ColumnNames(prompt="question", payload={"answer": "result"}, metadata=("level",))


def rows(count: int, start: int = 0) -> Rows:
    return [{"question": f"{n}+1?", "result": n + 1, "level": n % 3} for n in range(start, start + count)]


def jsonl(path: Path, content: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return path


def write(path: Path, content: Rows) -> Path:
    if path.suffix == ".jsonl":
        return jsonl(path, content)
    if path.suffix == ".json":
        path.write_text(json.dumps(content), encoding="utf-8")
        return path
    parquet.write_table(pa.Table.from_pylist(list(content)), path)
    return path


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_rows_become_tasks_split_by_content(tmp_path: Path, ending: str) -> None:
    source = FileTasks(write(tmp_path / f"a.{ending}", rows(100)), QUESTION)
    assert source.size(Split.TRAIN) + source.size(Split.TEST) == 100
    assert 5 <= source.size(Split.TEST) <= 40  # 20 expected
    task = source.task(Split.TEST, 0)
    number = int(task.prompt.split("+")[0])
    assert task.payload == {"prompt": f"{number}+1?", "answer": number + 1}
    assert (task.metadata, task.id, split_of(task.payload)) == ({"level": number % 3}, "test/0", Split.TEST)


def test_equal_answers_of_different_questions_are_different_tasks(tmp_path: Path) -> None:
    content = [{"question": f"question {n}", "result": 1, "level": 0} for n in range(30)]
    source = FileTasks(jsonl(tmp_path / "a.jsonl", content), QUESTION)
    assert len({source.task(split, i).key for split in Split for i in range(source.size(split))}) == 30


def test_files_per_split_are_official_and_the_test_side_wins(tmp_path: Path) -> None:
    files = {"train": jsonl(tmp_path / "a.jsonl", rows(10)), "test": jsonl(tmp_path / "b.jsonl", rows(2, start=3))}
    source = FileTasks(files, QUESTION)
    assert source.size(Split.TEST) == 2
    tasks = [source.task(Split.TRAIN, i) for i in range(source.size(Split.TRAIN))]
    assert [task.prompt for task in tasks] == [f"{n}+1?" for n in range(10) if n not in (3, 4)]
    assert [task.id for task in tasks] == [f"train/{i}" for i in range(8)], "though leaked rows are left out"


def test_an_id_column_that_repeats_itself_is_refused(tmp_path: Path) -> None:
    content = [{**row, "part": "test", "name": 7} for row in rows(3)]
    columns = ColumnNames(prompt="question", payload={"answer": "result"}, split="part", id="name")
    source = FileTasks(jsonl(tmp_path / "a.jsonl", content), columns)
    with pytest.raises(
        InvalidInput, match=r"task id must be unique in its split, got '7' twice \(test of .*a\.jsonl\)"
    ):
        source.size(Split.TEST)


def test_text_that_is_no_utf8_is_refused_with_its_row(tmp_path: Path) -> None:
    content = [*rows(2), {"question": "\ud800?", "result": 1, "level": 0}]
    with pytest.raises(InvalidInput, match=r"payload and metadata must be JSON, .*row 2 of"):
        FileTasks(jsonl(tmp_path / "a.jsonl", content), QUESTION).size(Split.TEST)


MAPPING = {"prompt": "question", "answer": "result", "split": "part", "id": "name", "metadata": "level"}


@pytest.mark.parametrize(
    "columns", [replace(QUESTION, split="part", id="name"), MAPPING], ids=["names", "a mapping of columns"]
)
def test_columns_of_split_id_and_metadata_are_no_fields_of_the_payload(tmp_path: Path, columns: Any) -> None:
    content = [{**row, "part": "test" if i < 3 else "train", "name": f"q{i}"} for i, row in enumerate(rows(10))]
    source = FileTasks(jsonl(tmp_path / "a.jsonl", content), columns)
    assert [source.task(Split.TEST, i).id for i in range(source.size(Split.TEST))] == ["q0", "q1", "q2"]
    assert source.size(Split.TRAIN) == 7
    task = source.task(Split.TEST, 1)
    assert (task.payload, task.metadata) == ({"prompt": "1+1?", "answer": 2}, {"level": 1})


def test_mapping_whose_value_names_no_column_is_refused(tmp_path: Path) -> None:
    columns: Any = {"prompt": "question", "payload": {"answer": "result"}}
    message = r"columns\['payload'\] must be the name of a column, got .*FileTasks.*; name one column"
    with pytest.raises(InvalidInput, match=message):
        FileTasks(tmp_path / "a.jsonl", columns)


def save(path: Path, **splits: Rows) -> str:
    datasets = pytest.importorskip("datasets")
    tables = {name: datasets.Dataset.from_list(list(content)) for name, content in splits.items()}
    datasets.DatasetDict(tables).save_to_disk(str(path))
    return str(path)


@pytest.mark.parametrize("test, num_test", [({"test": rows(5, 30)}, 5), ({}, 3)])
def test_validation_is_the_test_side_only_where_there_is_no_other(tmp_path: Path, test: Any, num_test: int) -> None:
    source = FileTasks(save(tmp_path / "d", train=rows(10), validation=rows(3, 20), **test), QUESTION)
    assert (source.size(Split.TRAIN), source.size(Split.TEST)) == (10, num_test)


def test_a_data_set_with_train_alone_is_split_by_content(tmp_path: Path) -> None:
    source = FileTasks(save(tmp_path / "d", train=rows(50)), QUESTION)
    assert source.size(Split.TEST) > 0
    assert source.size(Split.TRAIN) + source.size(Split.TEST) == 50


def test_unusual_splits_must_be_mapped(tmp_path: Path) -> None:
    path = save(tmp_path / "d", train=rows(10), hard=rows(3, 20))
    with pytest.raises(InvalidInput, match=r"split of the data set must have a usual name .* got hard"):
        FileTasks(path, QUESTION).size(Split.TEST)
    assert FileTasks(path, QUESTION, splits={"train": "train", "hard": "test"}).size(Split.TEST) == 3
    with pytest.raises(UnknownName, match="did you mean hard"):
        FileTasks(path, QUESTION, splits={"hrd": "test"}).size(Split.TEST)


def test_a_directory_of_jsonl_files_is_loaded_as_a_data_set(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "d"
    folder.mkdir()
    jsonl(folder / "train.jsonl", rows(10))
    jsonl(folder / "test.jsonl", rows(5, 30))
    source = FileTasks(folder, QUESTION)
    assert (source.size(Split.TRAIN), source.size(Split.TEST)) == (10, 5)


@pytest.mark.parametrize(
    "content, columns, sentence",
    [
        ('{"question": "1?"}', QUESTION, r"column must be one of question, got 'result' \(row 0 of .*a\.jsonl\); name"),
        ('{"quesion": "1?", "result": 1}', QUESTION, "one of quesion, result, got 'question' .* did you mean quesion"),
        (
            '{"question": 3, "result": 1, "level": 0}',
            QUESTION,
            "column 'question' must hold text or a list of messages, got 3",
        ),
        ("{nope}", QUESTION, r"line must be one JSON object, got '\{nope\}', which is not JSON: .* \(line 1 of "),
        ("\n[1]", QUESTION, r"line must be one JSON object, got \[1\] \(line 2 of "),
        ('\n{"prompt": "\udcff"}', ColumnNames(), r"line must be one JSON object, got .*byte 0xff.* \(line 2 of "),
        ("[" * 100_000, ColumnNames(), r"line must be one JSON object, got .*recursion.* \(line 1 of "),
        ('{"question": "1?", "result": NaN, "level": 0}', QUESTION, "payload and metadata must be JSON"),
        ('{"prompt": "1?", "answer": 1, "s": "dev"}', ColumnNames(split="s"), "split must be a known name, got 'dev'"),
    ],
)
def test_a_bad_file_is_one_clear_sentence(tmp_path: Path, content: str, columns: ColumnNames, sentence: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content, encoding="utf-8", errors="surrogateescape")  # \udcff stands for the bare byte ff
    with pytest.raises(InvalidInput, match=sentence):
        FileTasks(path, columns).size(Split.TRAIN)


def test_a_line_that_is_not_json_is_shown_with_one_number_of_the_line(tmp_path: Path) -> None:
    lines = ['{"question": "1?", "result": 1}', "", "{'question': '2?', 'result': 2}" + " " * 100 + "x"]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(InvalidInput) as refusal:
        FileTasks(path, {"prompt": "question", "answer": "result"}).size(Split.TRAIN)
    shown = f"{lines[2][:60]}..."
    assert str(refusal.value) == (
        f"line must be one JSON object, got {shown!r}, which is not JSON: expecting property name enclosed in double "
        f"quotes at character 2 (line 3 of {path}); correct or drop the line."
    )


def test_a_missing_file_is_refused_with_near_names_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").touch()
    near = re.escape(f"(folder {tmp_path}); did you mean {tmp_path / 'problems.jsonl'}?")
    with pytest.raises(InvalidInput, match=f"^source must be an existing file, got .*problem.jsonl {near}$"):
        FileTasks(tmp_path / "problem.jsonl").size(Split.TRAIN)


def test_a_source_that_is_not_there_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="source must be an existing file"):
        FileTasks(tmp_path / "none.jsonl").size(Split.TRAIN)
    (tmp_path / "a.parquet").write_text("no table")
    with pytest.raises(InvalidInput, match="source must be a Parquet file"):
        FileTasks(tmp_path / "a.parquet").size(Split.TRAIN)
    pytest.importorskip("datasets")
    with pytest.raises(
        InvalidInput, match="source must be a file, a data set directory or a hub name, got nobody/none"
    ):
        FileTasks("nobody/none").size(Split.TRAIN)


def test_cells_of_csv_are_texts_and_a_mapping_names_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\ufeffquestion,solution,note\n"Seven, and a 0?",007,\n\n"One\nor two?",1,x\n', encoding="utf-8")
    source = FileTasks({"train": path, "test": write(tmp_path / "b.jsonl", rows(1))}, QUESTION)
    with pytest.raises(
        InvalidInput, match=r"column must be one of question, solution, note, got 'result' \(row 0 of tra"
    ):
        source.size(Split.TRAIN)
    source = FileTasks(path, {"prompt": "question", "answer": "solution"})
    tasks = [source.task(split, index) for split in Split for index in range(source.size(split))]
    assert {task.prompt: task.payload for task in tasks} == {
        "Seven, and a 0?": {"prompt": "Seven, and a 0?", "answer": "007"},
        "One\nor two?": {"prompt": "One\nor two?", "answer": "1"},
    }


def draft(row: Row) -> TaskDraft | None:
    """Leave every third row out."""
    if row["level"] == 0:
        return None
    return TaskDraft(prompt=f"Compute {row['question']}", payload={"n": row["result"] - 1}, metadata={"of": "me"})


def test_function_makes_the_task_of_a_row_or_leaves_it_out(tmp_path: Path) -> None:
    source = FileTasks(jsonl(tmp_path / "a.jsonl", rows(30)), draft)
    assert source.size(Split.TRAIN) + source.size(Split.TEST) == 20
    task = source.task(Split.TRAIN, 0)
    assert (task.prompt, task.metadata) == (f"Compute {task.payload['n']}+1?", {"of": "me"})
    assert pickle.loads(pickle.dumps(source)).task(Split.TRAIN, 0) == task


@pytest.mark.parametrize(
    "function, told",
    [
        (lambda row: row["answer"], "got KeyError: 'answer'"),
        (lambda row: row["question"], r"got '0\+1\?'"),
    ],
)
def test_function_that_makes_no_task_is_one_sentence_with_the_columns(tmp_path: Path, function: Any, told: str) -> None:
    source = FileTasks(jsonl(tmp_path / "a.jsonl", rows(3)), function)
    must = "function <lambda> must return a TaskDraft or None, "
    with pytest.raises(InvalidInput, match=rf"{must}{told} \(row 0 of .*; the columns are question, result, level\."):
        source.size(Split.TRAIN)


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.csv", "prompt,answer\n1?,1,2\n", r"line must have 2 cells as the header, got 3 \(line 2 of "),
        ("a.csv", "prompt,prompt\n", r"line must name each column once, got prompt, prompt \(line 1 of "),
        ("a.csv", "", r"line must name each column once, got nothing \(line 1 of "),
        ("a.csv", 'prompt,answer\n"1?,1\n', r"line must be CSV in UTF-8, got unexpected end of data \(line"),
        ("a.csv", "prompt,answer\n\udcff,1\n", r"line must be CSV in UTF-8, got .*byte 0xff"),
        ("a.json", "{nope}", "source must be JSON, got Expecting property name"),
        ("a.json", '{"prompt": "1?"}', "source must hold a list of objects, got {'prompt': '1\\?'}"),
        ("a.json", "[1]", r"source must hold a list of objects, got \[1\]"),
        ("a.txt", "1?", "source must end in .jsonl or .json or .csv or .parquet, got .*a.txt"),
    ],
)
def test_a_bad_table_is_one_clear_sentence(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(InvalidInput, match=sentence):
        FileTasks(path).size(Split.TRAIN)


def test_rows_are_not_pickled(tmp_path: Path) -> None:
    source = FileTasks(jsonl(tmp_path / "a.jsonl", rows(1000)), QUESTION)
    size = source.size(Split.TRAIN)
    frozen = pickle.dumps(source)
    assert len(frozen) < 1000
    assert pickle.loads(frozen).size(Split.TRAIN) == size


def test_cells_of_csv_may_have_any_length(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    text = "x" * 300_000
    path.write_text(f'prompt,answer\n"{text}",1\n', encoding="utf-8")
    source = FileTasks(path)
    tasks = [source.task(split, index) for split in Split for index in range(source.size(split))]
    assert [task.prompt for task in tasks] == [text]
