"""The benchmark of policy servers runs, small."""

from argparse import Namespace
from typing import Any

import pytest

from benchmarks import policy_server


@pytest.mark.processes
def test_turns_and_updates_are_measured() -> None:
    options = Namespace(episodes=4, turns=2, repeats=1, gb=0.05)
    turns: dict[str, Any] = policy_server.measure_turns(options)
    assert turns["above_ms"] == pytest.approx(turns["served_ms"] - turns["inside_ms"], abs=1e-3)
    updates: dict[str, Any] = policy_server.measure_updates(options)
    assert list(updates)[:3] == ["files", "ipc", "gloo"]
    assert "files, adapters" in updates
    for update in updates.values():
        seconds = update["seconds_per_gb"]
        assert seconds["total"] == pytest.approx(seconds["write"] + seconds["still"], abs=2e-3)
