"""Processes beside a run: none hangs, none is left, and the first that dies ends the run with one sentence."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from envgym.errors import RunError
from envgym.runtime.processes import process
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.log import read_line
from envgym.runtime.processes.process import ProcessSpec

READY = 'print(\'{"time": "2026", "role": "x", "event": "ready", "url": "http://here"}\', flush=True)'
WAIT = "import time; time.sleep(100)"


def python(role: str, *lines: str, serves: bool = True) -> ProcessSpec:
    return ProcessSpec(role, (sys.executable, "-c", "\n".join(lines)), serves=serves)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


class Interrupted:
    """Takes the place of the main thread."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self) -> None:
        self.event.set()

    def wait(self) -> None:
        """Block until then, as a run that was interrupted. Raises: KeyboardInterrupt."""
        assert self.event.wait(60)
        raise KeyboardInterrupt


def started(folder: Path, interrupt: Interrupted | None = None) -> Processes:
    resume = "envgym train runs/demo --resume"
    return Processes(folder, run="demo", resume=resume, interrupt_by=interrupt or Interrupted())


def test_addresses_are_known_once_all_are_ready(tmp_path: Path) -> None:
    with started(tmp_path) as group:
        group.start([python("policy-server-0", READY, WAIT), python("learner-1", WAIT, serves=False)])
        assert group.wait_ready(timeout_s=60)["policy-server-0"]["url"] == "http://here"
        states = group.states()
        assert [(state.role, state.state) for state in states] == [
            ("policy-server-0", "running"),
            ("learner-1", "running"),
        ]
        assert states[0].memory_mib > 1
    assert all(gone(state.pid) for state in states)


def test_the_first_death_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    interrupted = Interrupted()
    with pytest.raises(RunError) as raised, started(tmp_path, interrupted) as group:  # noqa: PT012
        group.start([python("env-server-0", READY, WAIT), python("policy-server-0", READY, "print('so long')", WAIT)])
        group.wait_ready(timeout_s=60)
        other, victim = group.states()
        os.kill(victim.pid, signal.SIGKILL)
        interrupted.wait()
    assert str(raised.value).startswith("policy-server-0 must run until the run ends, got the signal SIGKILL")
    assert str(raised.value).endswith("then go on with: envgym train runs/demo --resume.")
    assert isinstance(raised.value.__cause__, KeyboardInterrupt)
    assert gone(other.pid)


def test_what_it_printed_last_is_in_the_sentence_and_the_log(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="got exit code 3 after: out of memory"), started(tmp_path) as group:  # noqa: PT012
        group.start([python("learner-1", "print('out of memory')", "raise SystemExit(3)")])
        group.wait_ready(timeout_s=60)
    entry = read_line((tmp_path / "learner-1.jsonl").read_text())
    assert entry is not None
    assert (entry["run"], entry["role"], entry["level"]) == ("demo", "learner-1", "OUTPUT")
    assert entry["message"] == "out of memory"


def test_an_error_of_the_run_itself_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), started(tmp_path) as group:  # noqa: PT012
        group.start([python("env-server-0", READY, WAIT)])
        group.wait_ready(timeout_s=60)
        raise ValueError("mine")


def test_one_that_never_gets_ready_is_named_with_its_log(tmp_path: Path) -> None:
    expected = r"env-server-0 must be ready within 0\.5 s, got still loading \(.*env-server-0\.jsonl\)"
    with pytest.raises(RunError, match=expected), started(tmp_path) as group:  # noqa: PT012
        group.start([python("env-server-0", "print('still loading', flush=True)", WAIT)])
        deadline = time.monotonic() + 60
        while not group.states()[0].last_line and time.monotonic() < deadline:
            time.sleep(0.02)
        group.wait_ready(timeout_s=0.5)


def test_a_rank_that_is_done_may_end(tmp_path: Path) -> None:
    interrupted = Interrupted()
    with started(tmp_path, interrupted) as group:
        group.start([python("learner-1", "pass", serves=False)])
        deadline = time.monotonic() + 60
        while group.states()[0].state == "running" and time.monotonic() < deadline:
            time.sleep(0.02)
        assert group.states()[0].state == "exit code 0"
    assert not interrupted.event.is_set()


def test_one_that_will_not_end_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.3)
    deaf = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    child = f"print(subprocess.Popen([sys.executable, '-c', {f'{deaf}; {WAIT}'!r}]).pid, flush=True)"
    with started(tmp_path) as group:
        group.start([python("env-server-0", deaf, READY, child, WAIT)])
        deadline = time.monotonic() + 60
        while not group.states()[0].last_line and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)  # its child has begun to ignore the signal
        (state,) = group.states()
    assert gone(state.pid)
    assert gone(int(state.last_line))


def test_a_death_while_all_begin_needs_no_interrupt(tmp_path: Path) -> None:
    interrupted = Interrupted()
    with pytest.raises(RunError, match="got exit code 3"), started(tmp_path, interrupted) as group:  # noqa: PT012
        group.start([python("learner-1", "import time; time.sleep(0.2)", "raise SystemExit(3)")])
        group.wait_ready(timeout_s=60)
        time.sleep(1)
        group.wait_ready(timeout_s=60)
    assert not interrupted.event.is_set()


def test_a_death_is_known_though_its_child_keeps_the_output_open(tmp_path: Path) -> None:
    interrupted = Interrupted()
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAIT!r}])"
    with pytest.raises(RunError, match="got exit code 3"), started(tmp_path, interrupted) as group:  # noqa: PT012
        group.start([python("env-server-0", READY, child, "raise SystemExit(3)")])
        interrupted.wait()


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "env-server-0.jsonl").mkdir()
    with started(tmp_path) as group:
        group.start([python("env-server-0", "print('x' * 100_000, flush=True)", READY, WAIT)])
        assert group.wait_ready(timeout_s=60)["env-server-0"]["url"] == "http://here"


PARENT = """
import sys
from pathlib import Path
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.process import ProcessSpec

CHILD = '''
import time
from envgym.runtime.processes.log import open_log_of_environment
from envgym.runtime.processes.group import announce, end_with_parent
end_with_parent()
open_log_of_environment()
announce(url="http://here")
time.sleep(100)
'''

with Processes(Path(sys.argv[1]), run="demo", resume="again") as group:
    group.start([ProcessSpec("env-server-0", (sys.executable, "-c", CHILD))])
    group.wait_ready(timeout_s=30)
    print(group.states()[0].pid, flush=True)
    import time
    time.sleep(100)
"""


@pytest.fixture
def parent(tmp_path: Path, request: pytest.FixtureRequest) -> "subprocess.Popen[str]":
    """A program with one process beside it, whose id is its first line; it treats SIGINT as the parameter says."""
    how = getattr(request, "param", "signal.default_int_handler")
    program = f"import signal; signal.signal(signal.SIGINT, {how})\n{textwrap.dedent(PARENT)}"
    command = [sys.executable, "-c", program, str(tmp_path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_nothing_outlives_a_parent_that_was_killed(parent: "subprocess.Popen[str]") -> None:
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    assert gone(child)


@pytest.mark.parametrize("parent", ["signal.default_int_handler", "signal.SIG_IGN"], indirect=True)
def test_a_death_interrupts_the_main_thread(parent: "subprocess.Popen[str]") -> None:
    with parent:
        assert parent.stdout is not None
        os.kill(int(parent.stdout.readline()), signal.SIGKILL)
        _, told = parent.communicate(timeout=90)
    assert parent.returncode == 1
    assert told.splitlines()[-1].startswith("envgym.errors.RunError: env-server-0 must run until the run ends")
