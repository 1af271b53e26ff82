"""The page on several processes shows the sentence of a death, and lines of a trace, as they are printed."""

import json
import re
from pathlib import Path

import pytest
import yaml

from envgym.cli.main import main
from envgym.errors import RunError
from envgym.runs.files import LOGS
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.log import line_of
from envgym.trainer.launch.launch import check_addresses
from envgym.trainer.settings import train_settings
from tests.envgym.runtime.processes.test_group import Interrupted, python
from tests.support.pages import blocks_of

(STATIC,) = (block.text for block in blocks_of("docs/processes.md", "yaml"))
DEATH, TRACE = (block.text for block in blocks_of("docs/processes.md", "text"))


def test_page_shows_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted = Interrupted()
    logs, resume = tmp_path / "runs/served/logs", "envgym train runs/served --resume"
    group = Processes(logs, run="served", resume=resume, interrupt_by=interrupted)
    killed = python("learner-1", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(RunError) as raised, group:  # noqa: PT012
        group.start([killed])
        interrupted.wait()
    assert f"envgym: {raised.value}".replace(f"{tmp_path}/", "") == DEATH.strip()

    (tmp_path / "run.json").write_text(json.dumps({"schema": 2, "name": "served", "id": "a"}))
    (tmp_path / LOGS).mkdir()
    lines = []
    for shown in TRACE.splitlines()[1:]:
        found = re.fullmatch(r" *(\S+) s  (\S+) +(\S+)(?: branch (\d+))?  (\S+)  (.*)", shown)
        assert found is not None
        seconds, role, episode, branch, event, fields = found.groups()
        told = {key: float(value) for key, value in (field.split("=") for field in fields.split("  "))}
        told = {key: int(value) if value.is_integer() else value for key, value in told.items()}
        ids = {"episode": episode, "branch": None if branch is None else int(branch)}
        entry = json.loads(line_of("served", role, "INFO", {**ids, "event": event, **told}))
        time = f"2026-01-31T12:00:{float(seconds) + 0.123456:09.6f}Z"
        lines.append(json.dumps({**entry, "time": time}))
    (tmp_path / LOGS / "controller.jsonl").write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    assert main(["trace", str(tmp_path), "step-000001/000"]) == 0
    assert capsys.readouterr().out == TRACE


def test_settings_of_the_page_have_as_many_addresses_as_they_say() -> None:
    check_addresses(train_settings(yaml.safe_load(STATIC)))
