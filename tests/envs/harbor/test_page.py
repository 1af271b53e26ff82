"""The section on tasks in containers: its folder is checked, played, evaluated with an endpoint, and trained on."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from envgym.cli.main import main
from tests.agents.policies.fake_server import running
from tests.support.pages import SMALL, blocks_of, read_blocks

if TYPE_CHECKING:
    from docker import APIClient

pytestmark = pytest.mark.docker
PAGE = "docs/connect.md"


def words_of(command: str) -> list[str]:
    """Return the words after `envgym` of the command of the page."""
    lines = [line for block in blocks_of(PAGE, "bash") for line in block.commands if "code/harbor-v0" in line]
    (line,) = [line for line in lines if line.startswith(f"envgym {command} ")]
    return shlex.split(line)[1:]


@pytest.fixture
def folder(engine: "APIClient", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files that the page shows, and the prompt."""
    for block in read_blocks(PAGE):
        if block.title.startswith("tasks/"):
            (tmp_path / block.title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    (tmp_path / "tasks" / "squares" / "instruction.md").write_text("Write the squares of 1 to 3 to squares.txt.")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_folder_of_the_page_is_checked_and_played(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words_of("check")) == 0
    shown = capsys.readouterr().out
    assert "PASS  oracle_reaches_optimum" in shown
    assert "PASS  chance_stays_at_declared" in shown
    assert main(words_of("play")) == 0
    assert "reward 1" in capsys.readouterr().out


CALL = {"name": "bash", "arguments": '{"command": "printf \'1\\\\n4\\\\n9\\\\n\' > squares.txt"}'}


def test_the_folder_of_the_page_is_evaluated_with_an_endpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": CALL}]}
    replies = (calls, {"role": "assistant", "content": "Done."})
    with running() as server:
        server.script = [{"choices": [{"message": reply, "finish_reason": "stop"}]} for reply in replies]
        words = [server.url if word.startswith("http://") else word for word in words_of("eval")]
        assert main(words) == 0
    assert "100" in capsys.readouterr().out


def test_the_folder_of_the_page_is_trained_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"recipe": "grpo", "agent": "tool_calling", "run": {"name": "containers", "steps": 2}}
    envs = [{"id": "code/harbor-v0", "settings": {"folder": "tasks", "max_turns": 2}}]
    Path("containers.yaml").write_text(
        yaml.safe_dump({**settings, "envs": envs, "evaluation": {"split": "train", "tasks": 1}})
    )
    small = [
        word for setting in SMALL if not setting.startswith(("run.steps", "evaluation")) for word in ("--set", setting)
    ]
    assert main(["train", "containers.yaml", *small, "--set", "rollout.groups=1"]) == 0, capsys.readouterr().err
