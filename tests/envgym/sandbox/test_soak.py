"""Many runs and sessions with failures among them leave nothing behind. ENVGYM_SOAK_RUNS sets how many."""

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from envgym.errors import ForkUnsupported, InvalidInput, ToolInfraFailure
from envgym.sandbox import MIB, Limits, PythonSession, Sandbox
from envgym.sandbox._tree import descendants
from envgym.sandbox._wardens import shared_warden

NUM_RUNS = int(os.environ.get("ENVGYM_SOAK_RUNS", "200"))
LIMITS = Limits(wall_s=0.3, memory=64 * MIB, processes=8, output=1000, disk=MIB)
COMMANDS = (
    ["true"],
    ["sh", "-c", "exit 3"],
    ["sh", "-c", "kill -ABRT $$"],
    ["sh", "-c", "sleep 99 & sleep 99 & echo left"],
    ["sh", "-c", "while :; do echo x; done"],
    ["sh", "-c", "while :; do :; done"],
    ["sleep", "99"],
    ["no-such-program"],
    ["sh", "-c", "\0"],
)
CODES = (
    "1",
    "import os; os._exit(1)",
    "while True: pass",
    "1/0",
    "import subprocess; p = subprocess.Popen(['sleep', '99'])",
)


def runs(bwrap: Sandbox, draw: random.Random) -> None:
    bwrap.run(draw.choice(COMMANDS), limits=LIMITS, files={"a": bytes(10)})


def sessions(bwrap: Sandbox, draw: random.Random) -> None:
    with PythonSession(LIMITS) as session:
        session.run(draw.choice(CODES))
        twin = session.fork()
        twin.run(draw.choice(CODES))
        if draw.random() < 0.5:
            twin.close()


def kills(bwrap: Sandbox, draw: random.Random) -> None:
    """Kill the launcher, or the sandbox of all sessions."""
    name = draw.choice([b"_launcher.py", b"envgym.sandbox._warden"])
    for pid in descendants(os.getpid()):
        with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as command:
            if name in command.read():
                os.kill(pid, signal.SIGKILL)
                return


class State(NamedTuple):
    """What a leak would change."""

    processes: int
    descriptors: int
    mounts: str
    files: list[str]

    def holds_more_than(self, other: "State") -> bool:
        """Tell whether something is left over; processes of earlier tests may have ended since."""
        is_more = self.processes > other.processes or self.descriptors > other.descriptors
        return is_more or (self.mounts, self.files) != (other.mounts, other.files)


def state() -> State:
    """Return how things are."""
    shared_warden().close()
    names = os.listdir(tempfile.gettempdir())
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    return State(len(descendants(os.getpid())), len(os.listdir("/proc/self/fd")), mounts, names)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_many_runs_with_failures_leave_no_process_descriptor_mount_or_file(
    bwrap: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    draw = random.Random(0)
    assert bwrap.run(["true"]).is_success
    before = state()
    for _ in range(NUM_RUNS):
        kinds: list[Callable[[Sandbox, random.Random], None]] = [runs, sessions, kills]
        with suppress(ToolInfraFailure, InvalidInput, ForkUnsupported):
            draw.choices(kinds, [0.7, 0.29, 0.01])[0](bwrap, draw)
    with suppress(ToolInfraFailure):  # the launcher may have been killed last
        bwrap.run(["true"])
    assert bwrap.run(["true"]).is_success
    deadline = time.monotonic() + 30
    while (after := state()).holds_more_than(before) and time.monotonic() < deadline:
        os.sched_yield()  # what was ended last is still being waited for by the launcher
    assert not after.holds_more_than(before), (before, after)
