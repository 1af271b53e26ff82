"""The log of a run: of every episode what was asked of policy and env, in order, and what became of its group."""

from pathlib import Path

import pytest

from envgym.runs.files import LOGS
from envgym.runtime.processes.log import close_log, open_log, read_trace
from envgym.trainer.train import train
from tests.support.tiny_runs import tiny_settings

pytestmark = pytest.mark.slow


def test_trace_of_a_group_tells_its_episodes(tmp_path: Path) -> None:
    search = {"name": "random_expand", "trees": 2, "rounds": 1, "nodes": 1}
    settings = tiny_settings(tmp_path / "run", search=search, run={"steps": 1})
    open_log(tmp_path / "run-logs" / LOGS / "controller.jsonl", run="tiny", role="controller")
    try:
        train(settings)
    finally:
        close_log()
    entries = read_trace(tmp_path / "run-logs", "step-000001/000")
    assert entries[-1]["event"] in ("trained", "dropped")
    assert entries[-1]["step"] == 1
    branches: dict[tuple[str, int | None], list[str]] = {}
    for entry in entries[:-1]:
        branches.setdefault((entry["episode"], entry.get("branch")), []).append(entry["event"])
    played = [events for (_, branch), events in branches.items() if branch is not None]
    assert len(played) == entries[-1]["episodes"]
    for (_, branch), events in branches.items():
        rest = events[events[0] == "reset" :]
        if branch is None:
            assert rest == []
        else:
            assert rest == (["generate", "step"] * len(rest))[: len(rest)]
