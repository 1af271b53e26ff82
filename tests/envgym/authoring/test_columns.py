"""Columns by name and by path: what is found, and what is refused with the row and near names."""

from typing import Any

import pytest

from envgym.authoring import FileTasks
from envgym.authoring.columns import read_cell
from envgym.core.tasks import Split
from envgym.errors import InvalidInput, UnknownName
from tests.support.public_rows import ROWS, PublicRow

ROW = {
    "question": "1?",
    "extra_info": {"answer": "7", "index": 3, "tags": ["a", "b"]},
    "choices": [{"text": "x"}, {"text": "y"}],
    "a.b": "own name",
    "a": {"b": "inside"},
    "reward_model": None,
}


@pytest.mark.parametrize(
    "column, value",
    [
        ("question", "1?"),
        ("extra_info.answer", "7"),
        ("extra_info.tags[1]", "b"),
        ("choices[0].text", "x"),
        ("choices[-1].text", "y"),
        ("a.b", "own name"),  # a column of this name comes first
        ("reward_model", None),
    ],
)
def test_path_finds_what_is_inside_a_column(column: str, value: object) -> None:
    assert read_cell(ROW, column, "row 0") == value


@pytest.mark.parametrize(
    "column, sentence",
    [
        (
            "extra_info.anwser",
            r"column must be one of question, .*, got 'extra_info.anwser' \(row 4 of x\); did you mean",
        ),
        ("index", r"got 'index' \(row 4 of x\); did you mean extra_info\.index\?$"),
        ("zzz", r"got 'zzz' \(row 4 of x\); name one of them\.$"),
        ("choices[2]", r"choices of column 'choices\[2\]' must be a list with an entry 2, got \[.*\(row 4 of x\)"),
        ("question[0]", "question of column .* must be a list with an entry 0, got 1?"),
        ("reward_model.ground_truth", "reward_model of column 'reward_model.ground_truth' must be an object, got None"),
        ("extra_info..answer", "column must be one of .*, got 'extra_info..answer'"),
        ("choices[x]", r"got 'choices\[x\]'"),
        ("", "got ''"),
    ],
)
def test_wrong_path_names_the_row_and_near_columns(column: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        read_cell(ROW, column, "row 4 of x")


def test_column_that_is_not_there_is_an_unknown_name_with_the_fields_of_objects() -> None:
    with pytest.raises(
        UnknownName, match=r"be one of question, extra_info\.answer, extra_info\.index, extra_info\.tags"
    ):
        read_cell(ROW, "answer_key", "row 0")


@pytest.mark.parametrize("public", [pytest.param(public, id=name) for name, public in ROWS.items()])
def test_rows_of_public_data_sets_are_read_by_columns_alone(public: PublicRow) -> None:
    source = FileTasks({"train": [public.row], "test": []}, public.columns)
    task = source.task(Split.TRAIN, 0)
    assert task.prompt == public.prompt
    expected: Any = read_cell(public.row, public.columns["answer"], "row 0")
    assert task.payload["answer"] == expected
    assert set(public.columns) - {"metadata", "id", "split", "prompt"} == set(task.payload) - {"prompt"}
