"""Settings of the environment that are refused, and what is said where no engine runs."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym.cli.main import main
from envgym.envs.code._harbor_tasks import load_supply
from envgym.errors import InvalidInput
from tests.support.task_folders import write_task

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "tool": ({"tool": "shell"}, "tool must be a known name, got 'shell'"),
    "verification": ({"verification": "never"}, "verification must be a known name, got 'never'"),
    "on_bad_task": ({"on_bad_task": "stop"}, "on_bad_task must be a known name, got 'stop'"),
    "limits": ({"limits": {"cpu": 1}}, "settings key must be known, got cpu"),
    "a limit": ({"limits": {"command_s": 0}}, "command_s must be greater than 0, got 0"),
    "folder": ({"folder": "no/such/folder"}, "folder must be a directory, got no/such/folder"),
    "swe and folder": (
        {"folder": "tasks", "swe": {"instances": "a.jsonl"}},
        "folder must be left out with swe",
    ),
    "swe": ({"swe": {"images": "a"}}, "instances must be set"),
    "a runner": (
        {"swe": {"instances": "a.jsonl", "runner": "nose"}},
        "runner must be 'pytest' or 'unittest'",
    ),
    "machines": ({"machines": "bwrap"}, "sandbox must offer machines, got bwrap"),
    "max_turns": ({"max_turns": 0}, "max_turns must be at least 1, got 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_setting_that_breaks_a_rule_is_refused_before_an_engine_is_asked(case: str) -> None:
    settings, sentence = REFUSED[case]
    with pytest.raises(InvalidInput, match=re.escape(sentence)):
        envgym.make("code/harbor-v0", **settings)


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no engine be found: neither the package nor a socket."""
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")


def test_without_an_engine_making_it_fails_in_one_sentence(no_engine: None) -> None:
    with pytest.raises(InvalidInput, match="containers must run here, got ") as error:
        envgym.make("code/harbor-v0")
    assert "\n" not in str(error.value)
    with envgym.make("code/sql-v0") as other:
        other.reset(seed=0)


def test_without_an_engine_the_command_line_says_so_and_ends_with_2(
    no_engine: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_task(tmp_path)
    assert main(["check", "code/harbor-v0", "--set", f"folder={folder}"]) == 2
    assert "containers must run here" in capsys.readouterr().err


def test_a_folder_of_tasks_in_place_of_those_that_ship_is_divided_by_share(tmp_path: Path) -> None:
    for number in range(20):
        write_task(tmp_path, f"t{number}")
    options: dict[str, Any] = {"test_share": None, "split_seed": 0, "on_bad_task": "fail"}
    sizes = [load_supply(None, str(tmp_path), None, **options).tasks.size(split) or 0 for split in envgym.Split]
    assert sum(sizes) == 20
    assert min(sizes) > 0
