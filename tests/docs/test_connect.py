"""The page of other projects' formats: its files and commands train as they are shown."""

import json
import shlex
from pathlib import Path

import pytest

from envgym.cli.main import main
from envgym.runs.directory import RunDirectory
from tests.support.pages import SMALL, blocks_of, read_blocks

PAGE = "docs/connect.md"


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
def test_conversations_of_the_page_are_learned(capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = (block.text for block in read_blocks(PAGE) if block.title == "chats.jsonl")
    rows = [json.loads(line) for line in file.splitlines()]
    small = [word for setting in SMALL if not setting.startswith(("sft=", "run.")) for word in ("--set", setting)]
    shown, trained = blocks_of(PAGE, "bash")[0].commands
    assert main([*shlex.split(shown)[1:], *small]) == 0
    assert "row/0, no reward, TERMINATED" in capsys.readouterr().out
    assert main([*shlex.split(trained)[1:], *small]) == 0
    (metrics,) = [row for row in RunDirectory.open(Path("runs/chats-sft")).metrics() if "sft/updates" in row]
    assert metrics["sft/episodes"] == len(rows)
    assert metrics["sft/updates"] == 3 * len(rows) / 2


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
def test_rows_of_the_page_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    played, shown = blocks_of(PAGE, "bash")[1].commands
    assert main(shlex.split(played)[1:]) == 0
    assert "reward 1 (answer 1)" in capsys.readouterr().out
    small = [word for setting in SMALL if not setting.startswith(("sft=", "run.")) for word in ("--set", setting)]
    assert main([*shlex.split(shown)[1:], *small, "--set", "evaluation.tasks=1"]) == 0
    assert "What is" in capsys.readouterr().out
