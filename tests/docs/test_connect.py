"""The page of other projects: its files and commands run as they are shown."""

import asyncio
import io
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from envgym import Split
from envgym.cli.main import main
from envgym.runs.directory import RunDirectory
from tests.support.env_server import serve_envs
from tests.support.mcp_clients import started
from tests.support.pages import ROOT, SMALL, blocks_of, read_blocks
from tests.support.recorded_runs import answer, recorded_run

PAGE = "docs/connect.md"


def lines_with(word: str) -> list[str]:
    return [line for block in blocks_of(PAGE, "bash") for line in block.commands if word in line]


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
def test_lines_for_other_projects_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_with("envgym connect")
    assert len(lines) >= 9
    for line in lines:
        words = shlex.split(line)[1:]
        assert main(words) == 0
        assert words[2] in capsys.readouterr().out


@pytest.mark.docs
def test_mcp_servers_of_the_page_start_as_a_client_starts_them() -> None:
    (over_http, over_stdio) = lines_with("--protocol mcp")
    (settings,) = [json.loads(block.text) for block in blocks_of(PAGE, "json") if "mcpServers" in block.text]
    command = settings["mcpServers"]["envgym"]
    assert sorted([command["command"], *command["args"]]) == sorted(shlex.split(over_stdio))
    mcp = pytest.importorskip("mcp")

    async def play(target: Any) -> None:
        async with mcp.Client(target) as client:
            begun = await client.call_tool("episode_start", {"seed": 0})
            assert "number" in begun.content[0].text

    asyncio.run(play(started(command["args"])))
    with serve_envs(*shlex.split(re.sub(r" --port \d+", "", over_http))[2:]) as url:
        asyncio.run(play(f"{url}/mcp"))


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
def test_the_server_of_the_page_gives_its_tools(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mcp")
    (line,) = lines_with("tools/mcp_tasks-v0")
    words = shlex.split(line.replace("[envgym,", f"[{sys.executable}, -m, envgym,"))
    assert main(words[1:]) == 0
    shown = capsys.readouterr().out
    assert "game__guess" in shown
    assert "reward 1" in shown


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
def test_openenv_servers_of_the_page_are_played(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (served,) = lines_with("--protocol openenv")
    played, evaluated = lines_with("openenv://127.0.0.1:8000")
    with serve_envs(*shlex.split(served.replace("--port 8000", ""))[2:]) as url:
        monkeypatch.setattr("sys.stdin", io.StringIO("50\n"))
        for line in (played, f"{evaluated} --tasks 2"):
            assert main(shlex.split(line.replace("127.0.0.1:8000", url.removeprefix("http://")))[1:]) == 0
    assert "Find the whole number from" in capsys.readouterr().out


def test_programs_are_run_here_or_in_a_lane() -> None:
    """A program with a package of another project is run with it, in tests/other_projects."""
    for block in (block for block in blocks_of(PAGE, "python") if not block.title):
        packages = set(re.findall(r"^from (\w+)", block.text, re.MULTILINE)) - {"envgym"}
        if not packages:
            exec(block.text, {"__name__": "page"})
        for package in packages:
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


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
def test_rows_of_the_page_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    (played,), (shown,) = lines_with("play data/file-v0"), lines_with("rows.yaml")
    assert main(shlex.split(played)[1:]) == 0
    assert "reward 1 (answer 1)" in capsys.readouterr().out
    small = [word for setting in SMALL if not setting.startswith(("sft=", "run.")) for word in ("--set", setting)]
    assert main([*shlex.split(shown)[1:], *small, "--set", "evaluation.tasks=1"]) == 0
    assert "What is" in capsys.readouterr().out


@pytest.mark.docs
def test_runs_of_the_page_are_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [("right", 1.0), ("wrong", 0.0)]
    train = [answer(*pair, place=f"step-000001/000/{number:02d}") for number, pair in enumerate(pairs)]
    recorded_run(Path("runs/demo"), train)
    held_out = [answer("right", 1.0, place="held-out/test/0/0", split=Split.TEST)]
    recorded_run(Path("runs/demo"), held_out, label="held-out")
    lines = lines_with("envgym export runs/demo")
    assert len(lines) == 5
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0
    assert sorted(path.name for path in Path("data").iterdir()) == ["best", "chat", "held-out", "pairs", "tokens"]
