"""Many runs and sessions with failures among them leave nothing behind, and hostile ones end no good one.

ENVGYM_SOAK_RUNS sets how many.
"""

import ctypes
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from envgym.errors import ForkUnsupported, InvalidInput, ToolInfraFailure
from envgym.sandbox import MIB, Limits, PythonSession, Sandbox, session
from envgym.sandbox._supervisor_client import shared_supervisor
from envgym.sandbox._tree import descendants
from tests.envgym.sandbox.test_session_attacks import AT_FORK, IN_EACH_CLONE

CHILD_SUBREAPER = 36
IN_FLIGHT = 4
NUM_RUNS = int(os.environ.get("ENVGYM_SOAK_RUNS", "50"))
MAX_CHAIN = 20
"""Forks of one session with runs between them; the kernel allows about 30."""
LIMITS = Limits(wall_s=0.3, memory=64 * MIB, processes=8, output=1000, disk=MIB)
GOOD = Limits(wall_s=60.0, cpu_s=600.0, memory=128 * MIB, processes=8, output=1000, disk=MIB)
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
    """Kill any process below this one: a launcher, a bwrap at any moment, a program, a session, its supervisor."""
    with suppress(OSError, IndexError):
        os.kill(draw.choice(descendants(os.getpid())[1:]), signal.SIGKILL)


KINDS: list[Callable[[Sandbox, random.Random], None]] = [runs, sessions, kills]


class State(NamedTuple):
    processes: list[str]
    descriptors: list[str]
    mounts: list[str]
    files: list[str]

    def holds_more_than(self, other: "State") -> bool:
        """Tell whether something is left over; what others had, earlier tests or the machine, may be gone."""
        return any(len(mine) > len(others) for mine, others in zip(self, other, strict=True))


def state() -> State:
    """Return how things are, once what has ended is waited for."""
    shared_supervisor().close()
    files = os.listdir(tempfile.gettempdir())
    descriptors = [os.readlink(f"/proc/self/fd/{number}") for number in open_descriptors()]
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return State([told for pid in descendants(os.getpid())[1:] if (told := looked_at(pid))], descriptors, mounts, files)


def open_descriptors() -> Iterator[int]:
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the directory's own
            os.fstat(number)
            yield number


def looked_at(pid: int) -> str:
    """Tell what a process is; wait for it where it has ended and has been left to us."""
    with suppress(OSError):
        fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if fields["State"].startswith("Z") and fields["PPid"] == str(os.getpid()):
            os.waitpid(pid, os.WNOHANG)
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
        place = os.readlink(f"/proc/{pid}/ns/pid")
        return f"{pid} below {fields['PPid']} in {place}, {fields['State']}: {command or fields['Name']}"
    return ""


@pytest.fixture
def adopted() -> Iterator[None]:
    """Become the parent of every process that loses its own below this one, so that none escapes."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(CHILD_SUBREAPER, 1) == 0
    yield
    assert libc.prctl(CHILD_SUBREAPER, 0) == 0


@pytest.fixture
def nothing_left(bwrap: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopted: None) -> Iterator[None]:
    """See at the end that no process, descriptor, mount or file is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert bwrap.run(["true"]).is_success
    before = state()
    yield
    with suppress(ToolInfraFailure):  # the launcher may have been killed last
        bwrap.run(["true"])
    assert bwrap.run(["true"]).is_success
    deadline = time.monotonic() + 30
    while (after := state()).holds_more_than(before) and time.monotonic() < deadline:
        os.sched_yield()  # what was ended last is still being waited for by the launcher
    assert not after.holds_more_than(before), "\n".join(map(str, [*before, *after]))


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.usefixtures("nothing_left")
def test_many_runs_with_failures_leave_no_process_descriptor_mount_or_file(bwrap: Sandbox) -> None:
    def work(number: int) -> None:
        draw = random.Random(number)
        with suppress(ToolInfraFailure, InvalidInput, ForkUnsupported):
            draw.choices(KINDS, [0.7, 0.28, 0.02])[0](bwrap, draw)

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(work, range(NUM_RUNS)))


class GoodSession:
    """A session that counts, and forks of it that know the count, whatever others do meanwhile."""

    def __init__(self) -> None:
        self.lock, self.count, self.forks, self.python = threading.Lock(), 0, 0, PythonSession(GOOD)
        assert self.python.run("n = 0").error is None

    def goes_on(self, *, forks: bool) -> None:
        with self.lock:
            self.count += 1
            assert self.python.run("n += 1; print(n)").output == f"{self.count}\n"
            if forks:
                self._fork()

    def _fork(self) -> None:
        twin = self.python.fork()
        assert twin.run("print(-n)").output == f"{-self.count}\n"
        twin.close()
        self.forks += 1
        if self.forks % MAX_CHAIN == 0:
            self.python.close()
            self.python = PythonSession(GOOD)
            self.python.run(f"n = {self.count}")


def hostile(draw: random.Random) -> None:
    with PythonSession(LIMITS) as session:
        in_each_copy = draw.random() < 0.7
        code = draw.choice(list(IN_EACH_CLONE.values()) if in_each_copy else CODES)
        session.run(AT_FORK.format(code) if in_each_copy else code)
        with suppress(ForkUnsupported):
            session.fork().close()


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.usefixtures("nothing_left")
def test_good_sessions_go_on_beside_many_hostile_ones(bwrap: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FORK_S", 5.0)
    good = [GoodSession() for _ in range(IN_FLIGHT)]
    generation = shared_supervisor().generation

    def work(number: int) -> None:
        draw = random.Random(number)
        with suppress(ToolInfraFailure, InvalidInput):
            hostile(draw) if draw.random() < 0.6 else runs(bwrap, draw)
        draw.choice(good).goes_on(forks=draw.random() < 0.3)

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(work, range(NUM_RUNS)))
    assert shared_supervisor().generation == generation
    assert sum(one.count for one in good) == NUM_RUNS
    for one in good:
        one.python.close()
