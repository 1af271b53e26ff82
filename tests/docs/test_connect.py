"""The page of other projects: its files and commands run as they are shown."""

import io
import json
import re
import shlex
from pathlib import Path

import pytest

from envgym.cli.main import main
from envgym.runs.directory import RunDirectory
from tests.support.pages import ROOT, SMALL, blocks_of, read_blocks

PAGE = "docs/connect.md"


def lines_with(word: str) -> list[str]:
    return [line for block in blocks_of(PAGE, "bash") for line in block.commands if word in line]


def test_programs_are_run_in_a_lane() -> None:
    """Each is run with the package itself, in tests/other_projects."""
    for block in (block for block in blocks_of(PAGE, "python") if not block.title):
        (package,) = re.findall(r"^from (?!envgym)(\w+)", block.text, re.MULTILINE)
        runner = ROOT / "tests/other_projects" / f"test_{package}.py"
        assert f'program_of_the_page("{package}")' in runner.read_text(encoding="utf-8")


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
def test_the_lake_of_the_page_is_played(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = lines_with("envgym play gymnasium://")
    monkeypatch.setattr("sys.stdin", io.StringIO("down\nright\n"))
    assert main(shlex.split(line)[1:]) == 0
    assert "left, down, right, up" in capsys.readouterr().out


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
def test_the_program_of_the_page_plays_an_evaluation() -> None:
    (line,) = lines_with("agent.py:play")
    small = ["--tasks", "2", "--agent-set", "max_turn_tokens=32", "--out", "played"]
    assert main([*shlex.split(line.replace("--tasks 20", ""))[1:], *small]) == 0
    (record,) = RunDirectory.open(Path("played")).evals()
    assert record["costs"]["turns"] >= 1
    assert "ERROR_ENV" not in record["endings"]


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
def test_conversations_of_the_page_are_learned(capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = (block.text for block in read_blocks(PAGE) if block.title == "chats.jsonl")
    rows = [json.loads(line) for line in file.splitlines()]
    small = [word for setting in SMALL if not setting.startswith(("sft=", "run.")) for word in ("--set", setting)]
    (shown, trained) = lines_with("chats.yaml")
    assert main([*shlex.split(shown)[1:], *small]) == 0
    assert "row/0, no reward, TERMINATED" in capsys.readouterr().out
    assert main([*shlex.split(trained)[1:], *small]) == 0
    (metrics,) = [row for row in RunDirectory.open(Path("runs/chats-sft")).metrics() if "sft/updates" in row]
    assert metrics["sft/episodes"] == len(rows)
    assert metrics["sft/updates"] == 3 * len(rows) / 2
