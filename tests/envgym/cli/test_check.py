"""`envgym check` of an environment that cannot begin: the fault is told once, not by every check."""

import re
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


TOOL = """
from envgym.authoring import FileTasks, RubricEnv
from envgym.parsing import tool_call_action


def look(name: str) -> str:
    \"\"\"Look a word up.

    Args:
        name: The word.
    \"\"\"
    return {{"one": "1"}}[name]


class Quiz(RubricEnv):
    tasks = FileTasks({source!r}, {{"prompt": "question"}})
    rubric = staticmethod(lambda answer: {reward})
    functions = (look,)
    chance_score = 0.0
"""


@pytest.mark.parametrize(
    "reward,options,code,fault",
    [("0.0", [], 0, ""), ("0.0", ["--tracebacks"], 0, "KeyError: "), ("2 / 0", [], 1, "ZeroDivisionError: ")],
)
def test_errors_of_tools_in_passing_checks_are_counted_and_their_tracebacks_shown_on_request(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    reward: str,
    options: list[str],
    code: int,
    fault: str,
) -> None:
    source, path = tmp_path / "a.jsonl", tmp_path / "quiz.py"
    source.write_text("".join(f'{{"question": "{n}?"}}\n' for n in range(50)))
    path.write_text(TOOL.format(source=str(source), reward=reward))
    only = ["--only", "hostile_actions_are_answered", "--only", "format_alone_pays_nothing"]
    assert main(["check", f"{path}:Quiz", "-n", "4", *only, *options]) == code
    shown = [message for message in caplog.messages if "Traceback" in message]
    assert [fault in message for message in shown] == ([True] if fault else [])  # each distinct one once
    counted = (
        r"^  This is not a failure: the environment's code raised an error (once|\d+ times \(1 kind\)), and every such"
    )
    assert bool(re.search(counted, capsys.readouterr().out, re.MULTILINE)) == (not fault)
