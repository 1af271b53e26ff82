"""The agent of the page, built with LangGraph, plays an evaluation."""

import shlex
from pathlib import Path

import pytest

from envgym.cli.main import main
from envgym.runs.directory import RunDirectory
from tests.support.pages import blocks_of, program_of_the_page

pytestmark = pytest.mark.connect


@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_the_agent_of_the_page_plays_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("graph.py").write_text(program_of_the_page("langgraph.prebuilt"), encoding="utf-8")
    commands = [command for block in blocks_of("docs/connect.md", "bash") for command in block.commands]
    (line,) = (command for command in commands if "graph.py:play" in command)
    small = ["--tasks", "2", "--agent-set", "max_turn_tokens=32", "--out", "played"]
    assert main([*shlex.split(line.replace("--tasks 20", ""))[1:], *small]) == 0
    (record,) = RunDirectory.open(Path("played")).evals()
    assert record["costs"]["turns"] >= 1
    assert "ERROR_ENV" not in record["endings"]
