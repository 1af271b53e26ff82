"""A run whose servers die, hang, join and leave goes on, and its counts of episodes add up at every step."""

import json
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from envgym.runs.directory import RunDirectory
from envgym.runs.files import LOGS, SERVERS
from tests.support.env_server import wait_until
from tests.support.tiny_runs import TINY
from tests.trainer.learner.ranks.test_runs import ended, pids_of, run_file, started

GROUPS, GROUP_SIZE = 2, 3
SLOW_GAME = '''
import time
from envgym import Env, Reply
from envgym.authoring import ListTasks, TaskDraft

class SlowWords(Env[int]):
    """Say a text of an even number of characters in two turns that take a while: something happens meanwhile."""

    tasks = ListTasks([TaskDraft(prompt=f"Text {number}.", payload={"number": number}) for number in range(8)])
    blocking = True

    def begin(self, task):
        self.state = 0
        return task.prompt

    def respond(self, action):
        time.sleep(0.3)
        self.state += 1
        return Reply(observation="Again.", reward=(len(action) % 2 == 0) / 2, terminated=self.state == 2)
'''
NUM = GROUPS * GROUP_SIZE
pytestmark = pytest.mark.processes


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of the run, in which nothing may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


MODEL = {"name": "tiny", "tiny": TINY}


def settings_file(folder: Path, launch: dict[str, Any], *, steps: int, **sections: Any) -> Path:
    (folder / "slow_game.py").write_text(SLOW_GAME)
    run = {"name": "ranks", "directory": "ranks", "steps": steps, "max_invalid_rate": 1.0}
    sections = {"envs": [{"id": "slow_game.py:SlowWords"}], **sections}
    rollout = {"groups": GROUPS, "group_size": GROUP_SIZE}
    return run_file(folder, run=run, launch=launch, rollout=rollout, model=MODEL, **sections)


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    log = (folder / "ranks" / LOGS / "controller.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, log) if entry.get("event") == name]


def wait_for_episodes(folder: Path, lines: Iterator[str], step: int) -> None:
    """Wait until all episodes of a step are under way: each was reset, and none has ended."""
    assert any(line.startswith(f"step {step - 1:>4}/") for line in lines), f"step {step - 1} did not end"

    def are_under_way() -> bool:
        with suppress(FileNotFoundError):
            begun = [str(entry["episode"]) for entry in events(folder, "reset")]
            return sum(episode.startswith(f"step-{step:06d}") for episode in begun) == NUM
        return False

    wait_until(are_under_way)


def check_counts(folder: Path, *, steps: int) -> list[dict[str, float]]:
    """See that every episode of every step is valid or counts by its cause; return the metrics of the steps."""
    rows = [row for row in RunDirectory.open(folder / "ranks").metrics() if "train/rows" in row]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    for row in rows:
        lost = sum(value for key, value in row.items() if key.startswith("invalid/"))
        valid = row["rollout/episodes"] - row["rollout/invalid"]
        assert valid + lost == row["rollout/groups"] * GROUP_SIZE == GROUPS * GROUP_SIZE
        dropped = sum(value for key, value in row.items() if key.startswith("dropped/"))
        assert row["rows/collected"] == row["rows/trained"] + dropped
        assert row["rows/trained"] <= valid  # an episode of this agent has one row
        assert sum(value for key, value in row.items() if key.startswith("dropped/ERROR")) == lost
    return rows


def check_nothing_left(folder: Path, temporary: Path) -> None:
    for start in events(folder, "start"):
        ended(start["pid"])
    for entry in events(folder, "join"):
        address = urlsplit(entry["server"])
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address.hostname or "", address.port or 0), timeout=5)
    assert not (folder / "ranks" / SERVERS).exists()
    assert not [path.name for path in temporary.iterdir() if path.name.startswith("envgym")]


def total(rows: Sequence[dict[str, float]], name: str) -> float:
    return sum(row.get(name, 0.0) for row in rows)


def test_servers_that_die_or_hang_are_started_again_and_the_run_goes_on(tmp_path: Path, temporary: Path) -> None:
    file = settings_file(tmp_path, {"servers": 1, "env_servers": 1, "health_timeout_s": 4.0}, steps=7)
    with started(tmp_path, "train", str(file)) as (run, lines):
        for step, role, number in (
            (2, "policy-server-0", signal.SIGKILL),
            (4, "env-server-0", signal.SIGKILL),
            (6, "policy-server-0", signal.SIGSTOP),
        ):
            wait_for_episodes(tmp_path, lines, step)
            os.kill(pids_of(tmp_path)[role], number)
        sentences = [line for line in lines if line.startswith("envgym: ")]
        assert run.wait(180) == 0
    assert not sentences
    rows = check_counts(tmp_path, steps=7)
    assert total(rows, "processes/restarts") == 3
    assert [entry["process"] for entry in events(tmp_path, "restart")] == [
        "policy-server-0",
        "env-server-0",
        "policy-server-0",
    ]
    versions = [entry["version"] for entry in events(tmp_path, "join") if "version" in entry]
    assert versions == [1, 5]  # the newest, whose checksums were compared, and not those of its start
    assert total(rows, "requests/retried") >= 1
    reissued = [entry["episode"] for entry in events(tmp_path, "reissue")]
    assert sorted(reissued) == [f"step-000004/{group:03d}/{index:02d}" for group in range(2) for index in range(3)]
    assert rows[3]["rollout/reissued"] == total(rows, "rollout/reissued") == NUM
    assert total(rows, "rollout/invalid") == 0
    check_nothing_left(tmp_path, temporary)


def test_a_server_that_dies_at_every_start_ends_the_run_with_one_sentence(tmp_path: Path, temporary: Path) -> None:
    file = settings_file(tmp_path, {"env_servers": 1, "restarts": 2}, steps=20)
    with started(tmp_path, "train", str(file)) as (run, lines):
        wait_for_episodes(tmp_path, lines, 2)
        (tmp_path / "slow_game.py").rename(tmp_path / "moved.py")
        os.kill(pids_of(tmp_path)["env-server-0"], signal.SIGKILL)
        sentences = [line for line in lines if line.startswith("envgym: ")]
        assert run.wait(180) == 2
    (sentence,) = sentences
    assert sentence.startswith(
        "envgym: env-server-0 must run until the run ends, got exit code 2 and 2 restarts within 600 s ("
    )
    assert "slow_game.py" in sentence
    assert sentence.endswith("then go on with: envgym train ranks --resume.\n")
    assert len(events(tmp_path, "restart")) == 2
    check_nothing_left(tmp_path, temporary)
