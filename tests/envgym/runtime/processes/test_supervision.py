"""Supervised processes: one that dies or hangs is started again, until its restarts are spent."""

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from envgym.errors import RunError
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.log import read_line
from envgym.runtime.processes.process import ProcessSpec
from envgym.runtime.processes.restarts import RESTARTS, RestartPolicy, failure_counts
from envgym.runtime.processes.supervision import Deadlines, checking_health
from tests.envgym.runtime.processes.test_group import READY, WAIT, Interrupted, gone
from tests.support.env_server import wait_until

QUICK = RestartPolicy(restarts=2, first_delay_s=0.01)
ONCE = "import os, sys; marker = {path!r}; first = not os.path.exists(marker); open(marker, 'w').close()"
"""Makes `first` true in the process that was started first."""


class Served:
    """What was told of a server that was started again."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def __call__(self, role: str, announced: Mapping[str, object] | None) -> None:
        self.told.append((role, None if announced is None else announced["url"]))


def server(*lines: str) -> ProcessSpec:
    return ProcessSpec("env-server-0", (sys.executable, "-c", "\n".join(lines)), is_restarted=True)


def processes(folder: Path, interrupt: Interrupted | None = None, *, restarts: RestartPolicy = QUICK) -> Processes:
    resume = "envgym train runs/demo --resume"
    return Processes(folder, run="demo", resume=resume, restarts=restarts, interrupt_by=interrupt or Interrupted())


def test_a_server_that_was_killed_serves_again_and_that_is_told(tmp_path: Path) -> None:
    served, before = Served(), failure_counts()
    with processes(tmp_path) as group:
        group.start([server(READY, WAIT), ProcessSpec("learner-1", (sys.executable, "-c", WAIT), serves=False)])
        group.wait_ready(timeout_s=60)
        with group.restarting(served):
            first, learner = group.states()
            os.kill(first.pid, signal.SIGKILL)
            wait_until(lambda: len(served.told) == 2)
            assert served.told == [("env-server-0", None), ("env-server-0", "http://here")]
            second, same = group.states()
        assert (second.role, second.state, same.pid) == ("env-server-0", "running", learner.pid)
    assert gone(first.pid)
    assert gone(second.pid)
    assert failure_counts()[RESTARTS] - before[RESTARTS] == 1


def test_a_server_that_dies_at_every_start_ends_the_run(tmp_path: Path) -> None:
    interrupted, served = Interrupted(), Served()
    dies = ONCE.format(path=str(tmp_path / "marker"))
    lines = (dies, "if not first: print('no room', flush=True); sys.exit(7)", READY, WAIT)
    with pytest.raises(RunError) as raised, processes(tmp_path, interrupted) as group:  # noqa: PT012
        group.start([server(*lines)])
        group.wait_ready(timeout_s=60)
        with group.restarting(served):
            os.kill(group.states()[0].pid, signal.SIGKILL)
            interrupted.wait()
    assert str(raised.value).startswith(
        "env-server-0 must run until the run ends, got exit code 7 and 2 restarts within 600 s after: no room ("
    )
    assert served.told == [("env-server-0", None)] * 2


def test_a_server_that_is_not_ready_again_in_time_is_killed_and_said_to_be(tmp_path: Path) -> None:
    interrupted, served = Interrupted(), Served()
    hangs = ONCE.format(path=str(tmp_path / "marker"))
    lines = (hangs, "import time", "if not first: time.sleep(100)", READY, WAIT)
    once, deadlines = QUICK._replace(restarts=1), Deadlines(health_s=8.0, start_s=0.5)
    with pytest.raises(RunError) as raised, processes(tmp_path, interrupted, restarts=once) as group:  # noqa: PT012
        group.start([server(*lines)])
        group.wait_ready(timeout_s=60)
        with group.restarting(served), checking_health(group, deadlines, {}):
            os.kill(group.states()[0].pid, signal.SIGKILL)
            interrupted.wait()
    assert "got the signal SIGKILL and 1 restart within 600 s after: it was not ready within 0.5 s" in str(raised.value)


def test_a_server_that_answers_nobody_is_killed(tmp_path: Path) -> None:
    served = Served()
    with processes(tmp_path) as group:
        group.start([server(READY.replace("http://here", "http://127.0.0.1:9"), WAIT)])
        group.wait_ready(timeout_s=60)
        (first,) = group.states()
        with group.restarting(served), checking_health(group, Deadlines(health_s=0.5, start_s=1000.0), {}):
            wait_until(lambda: group.states()[0].pid != first.pid)
        assert gone(first.pid)
    assert served.told[0] == ("env-server-0", None)


def test_nothing_is_started_again_when_the_run_ends(tmp_path: Path) -> None:
    served = Served()
    with processes(tmp_path, restarts=QUICK._replace(first_delay_s=1000.0)) as group:
        group.start([server(READY, WAIT)])
        group.wait_ready(timeout_s=60)
        with group.restarting(served):
            os.kill(group.states()[0].pid, signal.SIGKILL)
            wait_until(lambda: bool(served.told))
        began = time.monotonic()
    assert time.monotonic() - began < 60  # and not 1000 s
    assert served.told == [("env-server-0", None)]
    wait_until(lambda: not any(thread.name == "env-server-0" for thread in threading.enumerate()))
    assert [state.state for state in group.states()] == ["the signal SIGKILL"]


def test_what_a_server_said_before_and_after_is_in_one_log(tmp_path: Path) -> None:
    served = Served()
    with processes(tmp_path) as group:
        group.start([server("print('hello', flush=True)", READY, WAIT)])
        group.wait_ready(timeout_s=60)
        with group.restarting(served):
            os.kill(group.states()[0].pid, signal.SIGKILL)
            wait_until(lambda: len(served.told) == 2)
    entries = [read_line(line) for line in (tmp_path / "env-server-0.jsonl").read_text().splitlines()]
    assert [entry["message"] for entry in entries if entry is not None and "message" in entry] == ["hello"] * 2
