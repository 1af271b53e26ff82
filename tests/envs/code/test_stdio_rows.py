"""Rows of published data sets: each form is read, or left out and counted when the file is read."""

import base64
import json
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envgym.authoring.files import RowLeftOut
from envgym.core.tasks import Split
from envgym.envs.code._stdio_rows import ProblemFiles, read_row
from envgym.envs.code.stdio import Stdio
from envgym.errors import InvalidInput

Row = Mapping[str, Any]  # a decoded row
EXPECTED = [("1 2\n", "3\n"), ("4 5\n", "9\n")]
PAIRS = {"inputs": ["1 2\n", "4 5\n"], "outputs": ["3\n", "9\n"]}
LIST = [{"input": given, "output": output} for given, output in EXPECTED]
TYPED = [{**test, "type": "stdin_stdout"} for test in LIST]
LCB = [{**test, "testtype": "stdin"} for test in LIST]


def compressed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value)))).decode()


ROWS: dict[str, Row] = {
    "own": {"prompt": "Add.", "tests": LIST},
    "pairs": {"prompt": "Add.", "tests": EXPECTED},
    "APPS": {
        "problem_id": 1,
        "question": "Add.",
        "solutions": "[]",
        "input_output": json.dumps(PAIRS),
        "starter_code": "",
    },
    "APPS with the name of no function": {"question": "Add.", "input_output": json.dumps({**PAIRS, "fn_name": None})},
    "TACO": {"question": "Add.", "input_output": json.dumps(PAIRS), "difficulty": "EASY", "starter_code": ""},
    "DeepCoder, PrimeIntellect": {"problem": "Add.", "tests": json.dumps(TYPED), "solutions": ["x"]},
    "DeepCoder, TACO": {"problem": "Add.", "tests": json.dumps(PAIRS)},
    "DeepCoder, LiveCodeBench": {"problem": "Add.", "tests": json.dumps(LCB), "metadata": {"func_name": None}},
    "DeepCoder, Codeforces": {"problem": "Add.", "tests": json.dumps(LIST)},
    "SYNTHETIC-1": {"prompt": "Add.", "verification_info": json.dumps({"language": "python", "test_cases": TYPED})},
    "SYNTHETIC-1 as Python": {"prompt": "Add.", "verification_info": repr({"language": "python", "test_cases": TYPED})},
    "LiveCodeBench": {
        "question_content": "Add.",
        "starter_code": "",
        "public_test_cases": json.dumps(LCB[:1]),
        "private_test_cases": compressed(LCB[1:]),
        "metadata": "{}",
    },
    "CodeContests": {
        "description": "Add.",
        "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
        "private_tests": {"input": [], "output": []},
        "generated_tests": {"input": ["4 5\n"], "output": ["9\n"]},
    },
    "verl": {
        "prompt": [{"role": "system", "content": "Write code."}, {"role": "user", "content": "Add."}],
        "reward_model": {"style": "rule", "ground_truth": json.dumps(PAIRS)},
    },
}
REFUSED: dict[str, tuple[Row, str]] = {
    "APPS without tests": ({"question": "Add.", "input_output": ""}, "no tests"),
    "APPS with empty tests": ({"question": "Add.", "input_output": '{"inputs": [], "outputs": []}'}, "no tests"),
    "APPS with a function": (
        {"question": "Add.", "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]})},
        "tests that call a function",
    ),
    "PrimeIntellect with a function": (
        {
            "problem": "Add.",
            "tests": json.dumps([{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}]),
        },
        "tests that call a function",
    ),
    "LiveCodeBench with a function": (
        {
            "question_content": "Add.",
            "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
            "private_test_cases": "",
            "metadata": '{"func_name": "add"}',
        },
        "tests that call a function",
    ),
    "null": ({"prompt": "Add.", "tests": None}, "no tests"),
    "cut JSON": ({"prompt": "Add.", "tests": '[{"input": "1'}, "tests that are no JSON"),
    "nested brackets": ({"prompt": "Add.", "tests": "[" * 100_000}, "tests that are no JSON"),
    "a number": ({"prompt": "Add.", "tests": "3"}, "tests in an unknown form"),
    "no outputs": ({"prompt": "Add.", "tests": [{"input": "1"}]}, "tests in an unknown form"),
    "unequal": ({"prompt": "Add.", "tests": {"inputs": ["1"], "outputs": []}}, "not as many outputs as inputs"),
    "code in a pickle": (
        {
            "question_content": "Add.",
            "private_test_cases": base64.b64encode(zlib.compress(b"cos\nsystem\n(S'true'\ntR.")).decode(),
        },
        "tests that are no JSON",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_published_data_sets_are_read(name: str) -> None:
    assert read_row(ROWS[name]) == EXPECTED


def test_inputs_that_are_lines_or_numbers_become_text() -> None:
    tests = {"inputs": [["2", "1 2"], ["2", ["1", "2"]], 7], "outputs": [["3"], 3, 7.5]}
    assert read_row({"tests": tests}) == [("2\n1 2", "3"), ("2\n1 2", "3"), ("7", "7.5")]


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_cannot_be_run_are_refused(name: str) -> None:
    row, reason = REFUSED[name]
    with pytest.raises(RowLeftOut, match=reason):
        read_row(row)


def write(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def test_rows_that_are_left_out_are_counted_when_the_env_is_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write(tmp_path / "rows.jsonl", [*ROWS.values(), *(row for row, _ in REFUSED.values())])
    env = Stdio(source=source)
    assert f"12 of 26 rows of {source} are left out" in caplog.text
    assert ": no tests (3), tests that call a function (3)" in caplog.text
    split = next(split for split in Split if env.tasks.size(split))
    observation = env.reset(options={"split": split.value, "index": 0}).observation
    assert observation == "Add.\n\nExample input:\n1 2\nExample output:\n3\n\nExample input:\n4 5\nExample output:\n9"
    assert env.step("```python\nprint(sum(map(int, input().split())))\n```").reward == 1.0


def test_a_file_without_a_problem_that_can_be_run_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", [row for row, _ in REFUSED.values()])
    with pytest.raises(
        InvalidInput, match=r"rows must read standard input and have tests, got no tests \(3\), tests that"
    ):
        Stdio(source=source)


def test_columns_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="but tests is missing, got the columns prompt, answer"):
        Stdio(source=write(tmp_path / "rows.jsonl", [{"prompt": "Add.", "answer": "3"}]))
    with pytest.raises(InvalidInput, match="but prompt is missing, got the columns text, tests"):
        Stdio(source=write(tmp_path / "other.jsonl", [{"text": "Add.", "tests": LIST}]))


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", [ROWS["own"]])
    tasks = ProblemFiles(source)
    assert sum(tasks.size(split) for split in Split) == 1
    write(tmp_path / "rows.jsonl", [ROWS["own"], {"prompt": "Subtract.", "tests": LIST}])
    assert sum(tasks.current().size(split) for split in Split) == 2


def test_long_examples_are_shown_in_part(tmp_path: Path) -> None:
    tests = [{"input": "1 " * 5000, "output": "5000"}]
    env = Stdio(source=write(tmp_path / "rows.jsonl", [{"prompt": "Add.", "tests": tests}]))
    split = next(split for split in Split if env.tasks.size(split))
    observation = env.reset(options={"split": split.value, "index": 0}).observation
    assert "(7999 characters left out)" in observation
    assert len(observation) < 2200
