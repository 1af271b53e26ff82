"""The tutorial: its files and commands, in the order of the page, with fewer tasks and a shorter training run."""

import runpy
import shlex
from pathlib import Path

import pytest
import yaml

from envgym.cli.main import main
from envgym.runs.directory import RunDirectory
from tests.support.pages import form_of, read_blocks

TINY = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2}


def shorter(text: str) -> str:
    """Return the settings with a run of one step, and a model that learns nothing."""
    settings = yaml.safe_load(text)
    settings["run"]["steps"] = 1
    settings["model"]["tiny"] = TINY
    settings["sft"] |= {"episodes": 16, "until_success": None}
    settings["rollout"] = {"groups": 2, "group_size": 2}
    settings["filter"] = {"name": "keep_all"}
    settings["evaluation"]["tasks"] = 2
    return yaml.safe_dump(settings)


@pytest.mark.docs
def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    num_commands = 0
    for block in read_blocks("docs/first_task.md"):
        if block.language == "text":  # the end of what the command before it prints
            printed = form_of(capsys.readouterr().out)  # where no step trained anything, a line more says so
            assert [line for line in form_of(block.text) if line not in printed] == []
            continue
        if block.title:
            text = shorter(block.text) if block.language == "yaml" else block.text
            Path(block.title).write_text(text, encoding="utf-8")
            continue
        assert block.language == "bash", block.where
        for line in block.commands:
            program, *words = shlex.split(line.replace("--tasks 100", "--tasks 2"))
            words += ["-n", "3"] if words[0] == "check" else []
            if program == "python":
                runpy.run_path(words[0], run_name="__main__")
            else:
                assert (program, main(words)) == ("envgym", 0), line
            num_commands += 1
    assert num_commands >= 7
    assert RunDirectory.open(tmp_path / "runs/shop").config["envs"][0]["id"] == "shop_env.py:Shop"
    assert (tmp_path / "runs/shop/report.html").exists()
