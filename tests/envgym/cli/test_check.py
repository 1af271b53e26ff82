"""`envgym check` of an environment that cannot begin: the fault is told once, not by every check."""

from pathlib import Path

import pytest

from envgym.cli.main import main

ENV = """
from envgym.authoring import FileTasks, RubricEnv


class Quiz(RubricEnv):
    tasks = FileTasks({source!r}, {{"prompt": "question"}})
    rubric = staticmethod(lambda answer: 1.0)

    def begin(self, task):
        return task.payload["anser"]
"""


def test_reset_that_fails_is_one_failed_check_with_its_line_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    source, path = tmp_path / "a.jsonl", tmp_path / "quiz.py"
    source.write_text("".join(f'{{"question": "{n}?"}}\n' for n in range(50)))
    path.write_text(ENV.format(source=str(source)))
    assert main(["check", f"{path}:Quiz"]) == 1
    told = capsys.readouterr().out
    assert "reset of quiz.py:Quiz failed: KeyError: 'anser'" in told
    assert "0 passed, 1 failed, 0 not checked" in told
    (record,) = caplog.records
    assert f'File "{path}", line 10, in begin' in record.getMessage()


def test_file_of_tasks_that_does_not_fit_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, path = tmp_path / "a.jsonl", tmp_path / "quiz.py"
    source.write_text('{"text": "1?", "answer": "1"}\n')
    path.write_text(ENV.format(source=str(source)))
    assert main(["check", f"{path}:Quiz"]) == 2
    assert "column must be one of text, answer, got 'question'" in capsys.readouterr().err
