"""Sessions cannot meet, and one session's fault ends that session only: others run on while it is copied or ended."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from envgym.errors import ForkUnsupported, ToolInfraFailure
from envgym.sandbox import MIB, Limits, PythonSession, Sandbox, session
from envgym.sandbox._namespaces import FORK_FLAGS
from envgym.sandbox._supervisor_client import shared_supervisor
from tests.envgym.sandbox.processes import running

LIMITS = Limits(wall_s=20.0, cpu_s=2.0, memory=128 * MIB, processes=16, open_files=64, output=10_000, disk=MIB)

CHURN = """
def churn():
    end = time.monotonic() + 6
    while time.monotonic() < end:
        held = [os.dup(0) for _ in range(20)]
        for descriptor in held: os.close(descriptor)
"""
AT_FORK = (
    "import ctypes, os, signal, threading, time\nos.register_at_fork(after_in_child=lambda: exec({!r}, globals()))"
)
IN_EACH_CLONE = {
    "descriptors_come_and_go_in_a_thread": CHURN + "threading.Thread(target=churn, daemon=True).start()",
    "descriptors_come_and_go_in_a_child": CHURN + "if os.fork() == 0:\n  churn()\n  os._exit(0)",
    "children_come_and_go": "if os.fork() == 0:\n  end = time.monotonic() + 6\n  while time.monotonic() < end:\n"
    "    if os.fork() == 0: os._exit(0)\n    os.waitpid(-1, 0)\n  os._exit(0)",
    "threads_come_and_go": "def starts():\n  end = time.monotonic() + 6\n  while time.monotonic() < end:\n"
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


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_EACH_CLONE)
def test_a_hostile_fork_ends_no_other_session_and_delays_none(
    python: PythonSession, other: PythonSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FORK_S", 6.0)
    assert python.run(AT_FORK.format(IN_EACH_CLONE[name])).error is None
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
    assert max(delays, default=0.0) < 4.0  # the hostile one may take 6 seconds


def test_a_request_about_processes_that_have_ended_is_refused_and_others_are_served(other: PythonSession) -> None:
    supervisor = shared_supervisor()
    assert "refused" in supervisor.request("adopt", id=2**21, sockets=["socket:[1]"])
    assert "refused" in supervisor.request("check", id=2**21, ids=[2**21 + 1], sockets=["socket:[1]"])
    assert supervisor.request("undo", id=2**21, ids=[2**21 + 1]) == {}
    with pytest.raises(ToolInfraFailure, match="got usage"):
        supervisor.request("usage", id=2**21)


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


MEETING = {
    "datagrams_bound_to_a_name": "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.bind(b'\\0meet')",
    "packets_bound_to_a_name": "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET); a.bind(b'\\0meet')",
    "streams_bound_to_a_name": "a, b = socket.socketpair(); a.bind(b'\\0meet')",
    "streams_that_listen": "a, b = socket.socketpair(); a.listen()",
    "streams_that_accept": "a, b = socket.socketpair(); a.accept()",
    "streams_that_connect": "a, b = socket.socketpair(); a.connect(b'\\0meet')",
    "streams_that_send_to_a_name": "a, b = socket.socketpair(); a.sendto(b'stolen', b'\\0meet')",
    "descriptors_sent_to_a_name": "a, b = socket.socketpair()\n"
    "a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))], 0, b'\\0meet')",
    "the_sessions_channel_bound_to_a_name": "socket.socket(fileno=os.dup(3)).bind(b'\\0meet')",
    "pairs_of_other_families": "socket.socketpair(30, socket.SOCK_STREAM)",  # TIPC
    "raw_pairs": "socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)",  # datagrams by another name
    "pairs_with_flags": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "packets_of_the_network": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "kernel_cryptography": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "message_queues": "check(libc.syscall(240, b'meet', 66, 0o600, None))",
    "system_v_shared_memory": "check(libc.shmget(4242, 4096, 0o1666))",
    "system_v_messages": "check(libc.msgget(4242, 0o1666))",
    "system_v_semaphores": "check(libc.semget(4242, 1, 0o1666))",
    "keys_of_the_user": "check(libc.syscall(248, b'user', b'meet', b'x', 1, -4))",
    "files_without_a_name": "check(libc.syscall(319, b'meet', 0))",
    "io_uring": "check(libc.syscall(425, 4, ctypes.create_string_buffer(120)))",
    "memory_of_others": "check(libc.syscall(310, 1, None, 0, None, 0, 0))",
    "descriptors_of_others": "check(libc.syscall(438, os.pidfd_open(1), 0, 0))",
    "namespaces_of_others": "check(libc.setns(os.pidfd_open(1), 0x40000000))",
    "files_by_handle": "check(libc.syscall(304, 3, None, 0))",
    "watches_on_files_of_all": "check(libc.inotify_init())",
    "watches_with_flags": "check(libc.inotify_init1(0))",
    "marks_on_files_of_all": "check(libc.syscall(300, 0, 0))",
    "host_name": "check(libc.sethostname(b'stolen', 6))",
    "a_user_namespace": "check(libc.unshare(0x10000000))",
    "a_network_namespace": "check(libc.syscall(56, 0x40000011, 0, 0, 0, 0))",
    "clone3": "check(libc.syscall(435, ctypes.create_string_buffer(88), 88))",
    "clones_of_mounts": "check(libc.syscall(428, -100, b'/usr', 1))",
    "clones_of_mounts_with_attributes": "check(libc.syscall(467, -100, b'/usr', 1, 0, 0))",
    "clones_of_mounts_with_all_capabilities": "check(-in_namespaces(467))",
    "states_of_mounts": "a, b = buffers(64, 64); check(libc.syscall(457, a, b, 64, 0))",
    "lists_of_mounts": "a, b = buffers(64, 64); check(libc.syscall(458, a, b, 8, 0))",
    "calls_of_kernels_to_come": "check(libc.syscall(1000))",
    "watches_on_directories": "fcntl.fcntl(os.open('/usr', 0), fcntl.F_NOTIFY, 1)",
    "leases_on_files": "fcntl.fcntl(os.open('/usr/bin/env', 0), 1024, 0)",
    "large_pipes": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETPIPE_SZ, 1 << 20)",
    "mounts": "check(libc.mount(b't', b'/tmp', b'tmpfs', 0, 0))",
    "events_of_the_machine": "check(libc.syscall(298, ctypes.create_string_buffer(128), 0, -1, -1, 0))",
    "more_processes": "resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))",
}


@pytest.mark.parametrize("name", MEETING)
def test_a_session_cannot_make_what_another_could_meet(python: PythonSession, name: str) -> None:
    code = (
        "import array, ctypes, fcntl, os, resource, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def buffers(*sizes): return map(ctypes.create_string_buffer, sizes)\ndef check(result):\n"
        "  if result < 0: raise OSError(ctypes.get_errno(), 'refused')\n"
        f"def in_namespaces(number):\n  pid = libc.syscall(56, {FORK_FLAGS}, 0, 0, 0, 0)\n"
        "  if pid == 0: os._exit(libc.syscall(number, -100, b'/usr', 1, 0, 0) < 0)\n"
        "  return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
    )
    assert python.run(code + MEETING[name]).error in ("OSError", "PermissionError", "ValueError")
    assert python.run("1").output == "1\n"


def test_event_loops_work_in_a_session(python: PythonSession) -> None:
    assert python.run("import asyncio\nasync def one(): return 1\nasyncio.run(one())").output == "1\n"
