"""One session's fault ends that session only: others run on while it is copied, checked, refused or ended."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from envgym.errors import ForkUnsupported
from envgym.sandbox import MIB, Limits, PythonSession, Sandbox, session
from envgym.sandbox._supervisor_client import shared_supervisor
from tests.envgym.sandbox.processes import running

LIMITS = Limits(wall_s=20.0, cpu_s=2.0, memory=128 * MIB, processes=16, open_files=64, output=10_000, disk=MIB)

CHURN = """
def churn():
    end = time.monotonic() + 3
    while time.monotonic() < end:
        held = [os.dup(0) for _ in range(20)]
        for descriptor in held: os.close(descriptor)
"""
IN_EACH_CLONE = {
    "descriptors_come_and_go_in_a_thread": CHURN + "threading.Thread(target=churn, daemon=True).start()",
    "descriptors_come_and_go_in_a_child": CHURN + "if os.fork() == 0:\n  churn()\n  os._exit(0)",
    "children_come_and_go": "if os.fork() == 0:\n  end = time.monotonic() + 3\n  while time.monotonic() < end:\n"
    "    if os.fork() == 0: os._exit(0)\n    os.waitpid(-1, 0)\n  os._exit(0)",
    "threads_come_and_go": "def starts():\n  end = time.monotonic() + 3\n  while time.monotonic() < end:\n"
    "    threading.Thread(target=int).start()\nthreading.Thread(target=starts, daemon=True).start()",
    "clone_ends_at_once": "os._exit(0)",
    "clone_is_killed": "os.kill(os.getpid(), signal.SIGKILL); ctypes.string_at(0)",
    "clone_ends_a_little_later": "threading.Timer(0.005, os._exit, [0]).start()",
    "clone_closes_every_descriptor": "os.closerange(0, 64)",
    "clone_closes_its_channel_a_little_later": "threading.Timer(0.002, os.closerange, [3, 64]).start()",
    "clone_waits_for_a_child_of_vfork": "if ctypes.PyDLL(None).syscall(58) == 0: time.sleep(8); os._exit(0)",
    "clone_fills_its_disk": "threading.Thread(target=lambda: open('x', 'wb').write(bytes(2**21)), daemon=True).start()",
    "clone_makes_a_deep_directory": "for _ in range(900):\n  os.mkdir('d' * 4); os.chdir('d' * 4)",
    "clone_has_a_leader_that_ended": "threading.Thread(target=time.sleep, args=(3,), daemon=True).start()\n"
    "ctypes.CDLL(None).syscall(60, 0)",
    "clone_answers_garbage": "os.write(3, b'\\xff' * 4000)",
    "clone_answers_half": "os.write(3, b'\\x02\\0\\0\\0\\0\\0\\0\\0{')",
    "clone_answers_no_fields": "os.write(3, b'\\x02\\0\\0\\0\\0\\0\\0\\0[]')",
    "clone_answers_nested_fields": "os.write(3, b'\\xff\\xff\\0\\0\\0\\0\\0\\0' + b'[' * 65535)",
    "clone_stops_itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "clone_never_answers": "time.sleep(99)",
}


@pytest.fixture
def python(bwrap: Sandbox) -> Iterator[PythonSession]:
    with PythonSession(LIMITS) as opened:
        yield opened


@pytest.fixture
def other(bwrap: Sandbox) -> Iterator[PythonSession]:
    """Give a good session, and see at the end that it has lost nothing."""
    with PythonSession(LIMITS) as opened:
        opened.run("x = 42")
        yield opened
        assert opened.run("x").output == "42\n"


def has_fork(python: PythonSession) -> bool:
    """Fork a session, and tell whether that is allowed."""
    try:
        python.fork().close()
    except ForkUnsupported:
        return False
    return True


@pytest.mark.parametrize("name", IN_EACH_CLONE)
def test_a_hostile_fork_ends_no_other_session_and_delays_none(
    python: PythonSession, other: PythonSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FORK_S", 2.0)
    code = (
        "import ctypes, os, signal, threading, time\nos.register_at_fork(after_in_child=lambda: exec({!r}, globals()))"
    )
    assert python.run(code.format(IN_EACH_CLONE[name])).error is None
    generation = shared_supervisor().generation
    forking = threading.Thread(target=has_fork, args=(python,))
    forking.start()
    delays = []
    while forking.is_alive():
        begun = time.monotonic()
        with PythonSession(LIMITS) as fresh:
            assert fresh.run("1").output == "1\n"
        assert other.run("x").output == "42\n"
        delays.append(time.monotonic() - begun)
    assert shared_supervisor().generation == generation
    assert max(delays, default=0.0) < 1.5  # the hostile one may take longer


def test_a_request_about_processes_that_have_ended_is_refused_and_others_are_served(other: PythonSession) -> None:
    supervisor = shared_supervisor()
    assert "refused" in supervisor.request("adopt", id=2**21, sockets=["socket:[1]"])
    assert "refused" in supervisor.request("check", id=2**21, ids=[2**21 + 1], sockets=["socket:[1]"])
    assert supervisor.request("undo", id=2**21, ids=[2**21 + 1]) == {}
    assert supervisor.request("usage", id=2**21)["memory"] == 0


REFUSED = {
    "no_directory": "import os; os.mkdir('d'); os.chdir('d'); os.rmdir('../d')",
    "a_program_runs": "import subprocess; p = subprocess.Popen(['sleep', '99'])",
    "shared_memory": "import mmap; m = mmap.mmap(-1, 4096)",
    "no_descriptor_is_left": "import os\nheld = [os.dup(0) for _ in range(58)]",
    "cloning_fails": "import sys, errno; m = sys.modules['envgym.sandbox._interpreter']\n"
    "def refuses(): raise OSError(errno.ENOSPC, 'No space left')\nm.clone_into_namespaces = refuses",
}
NUM_OPEN = """
import os
def is_open(number):
    try: return os.fstat(number) is not None
    except OSError: return False
sum(map(is_open, range(64)))
"""


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_fork_leaves_no_descriptor_in_session_supervisor_or_host(python: PythonSession, name: str) -> None:
    assert python.run(REFUSED[name]).error is None
    (supervisor, *_) = running(rb"envgym\.sandbox\._supervisor")

    def counts() -> tuple[str, int, int]:
        host = len(os.listdir("/proc/self/fd"))
        return python.run(NUM_OPEN).output, len(os.listdir(f"/proc/{supervisor}/fd")), host

    before = counts()
    for _ in range(3):
        assert not has_fork(python)
    assert counts() == before
