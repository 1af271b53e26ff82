"""What hostile programs and sessions do to pass a limit: memory and processor time that a simple look does not see."""

import time
from dataclasses import replace

import pytest

from envgym.sandbox import MIB, DockerSandbox, Limits, PythonSession, RunEnding, Sandbox
from tests.envgym.sandbox.test_attacks import Attack, attack, stopped

MEMORY = Limits(wall_s=20.0, cpu_s=20.0, memory=64 * MIB, processes=32)
CPU = Limits(wall_s=20.0, cpu_s=0.5, memory=96 * MIB, processes=32)
SHARED = "import ctypes, mmap, os, time\nlibc = ctypes.CDLL(None, use_errno=True)\n"
SHARED_UNSEEN = SHARED + (
    "m = mmap.mmap(-1, 2**29)\nfor i in range(0, 2**29, 2**22):\n"
    "  for j in range(i, i + 2**22, 4096): m[j] = 1\n  m.madvise(mmap.MADV_DONTNEED, i, 2**22)\ntime.sleep({0})"
)
SHARED_PARTLY_UNMAPPED = SHARED + (
    "libc.mmap.restype = ctypes.c_void_p; libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t\n"
    "libc.memset.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t\n"
    "for i in range(16):\n  a = libc.mmap(None, 2**25, 3, 33, -1, 0)\n  libc.memset(a, 1, 2**25); time.sleep(0.06)\n"
    "  libc.munmap(a + 4096, 2**25 - 4096)\ntime.sleep({0})"
)
SHARED_BY_CHILDREN = SHARED + (
    "m = mmap.mmap(-1, 2**29)\nfor i in range(0, 2**29, 2**25):\n  if os.fork() == 0:\n"
    "    for j in range(i, i + 2**25, 4096): m[j] = 1\n    os._exit(0)\n  os.wait()\ntime.sleep({0})"
)
PAGE_TABLES = (
    "import mmap, time\nm = mmap.mmap(-1, 2**37, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000,"
    " prot=mmap.PROT_READ)\nfor i in range(0, 2**37, 2**21): m[i]\ntime.sleep({0})"
)
PAGE_TABLES_OF_CHILDREN = "import os\nfor _ in range(2): os.fork()\n" + PAGE_TABLES.replace("2**37", "2**35")
LEADER_ENDED = (
    "import ctypes, os, threading, time\nfor _ in range(3):\n  if os.fork() == 0: break\nelse: time.sleep({0})\n"
    "def hog():\n  x = bytearray(2**25)\n  time.sleep({0})\n"
    "threading.Thread(target=hog).start()\nctypes.CDLL(None).syscall(60, 0)"
)
FILL = "def fill(s):\n  s.setblocking(False)\n  try:\n    while True: s.send(bytes(60_000))\n  except OSError: pass\n"
STREAMS = (
    "import os, socket, time\nheld = []\n"
    + FILL
    + (
        "for _ in range(3): os.fork()\nfor _ in range(60):\n  pair = socket.socketpair(); held.append(pair)\n"
        "  for end in pair: fill(end)\ntime.sleep({0})"
    )
)
DATAGRAMS = STREAMS.replace("socketpair()", "socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)")
CLOSED_SENDERS = (
    "import os, socket, time\nheld = []\n"
    + FILL
    + (
        "for n in range(60):\n  r = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); r.bind(bytes([0, n]))\n"
        "  held.append(r)\n"
        "  for _ in range(11):\n    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(bytes([0, n]))\n"
        "    s.setblocking(False); s.send(bytes(150_000)); s.close()\ntime.sleep(99)"
    )
)
IN_FLIGHT = (
    "import array, os, socket, time\nkept = []\n"
    + FILL
    + (
        "for _ in range(2): os.fork()\ncarrier = socket.socketpair()\nfor _ in range(60):\n"
        "  pair = socket.socketpair()\n  for end in pair: fill(end)\n"
        "  held = array.array('i', [end.fileno() for end in pair])\n"
        "  try: carrier[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)])\n"
        "  except OSError: kept.append(pair); continue  # the user has no more descriptors on their way\n"
        "  for end in pair: end.close()\ntime.sleep(99)"
    )
)
TCP = (
    "import os, socket, time\nheld = []\n"
    + FILL
    + (
        "server = socket.create_server(('127.0.0.1', 0))\nfor _ in range(60):\n"
        "  a = socket.create_connection(server.getsockname()); b, _ = server.accept(); held += [a, b]\n"
        "  fill(a); fill(b); time.sleep(0.01); fill(a); fill(b)\ntime.sleep(99)"
    )
)
UDP = "import os, socket, time\nheld = []\nfor _ in range(2): os.fork()\n" + (
    "for _ in range(120):\n  r = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); r.bind(('127.0.0.1', 0))\n"
    "  held.append(r)\n"
    "  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "  for _ in range(30): s.sendto(bytes(20_000), r.getsockname())\ntime.sleep(99)"
)
SPIN = "import os, signal, threading, time\ndef spin(s):\n" + (
    "  end = time.process_time() + s\n  while time.process_time() < end: pass\n"
)
WAIT = "  try: os.wait()  # until all have ended, without their time\n  except ChildProcessError: pass\n"
CHILD = "  if os.fork() == 0:\n    spin({0})\n    os._exit(0)\n"
NOBODY_WAITS = SPIN + "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n" + CHILD + WAIT
HOGS = {
    "shared_pages_that_no_page_table_maps": Attack(code=SHARED_UNSEEN.format(99)),
    "shared_pages_that_are_partly_unmapped": Attack(code=SHARED_PARTLY_UNMAPPED.format(99)),
    "shared_pages_that_ended_children_wrote": Attack(code=SHARED_BY_CHILDREN.format(99)),
    "page_tables_of_the_page_of_zeros": Attack(code=PAGE_TABLES.format(99)),
    "page_tables_of_many_processes": Attack(code=PAGE_TABLES_OF_CHILDREN.format(99)),
    "processes_whose_first_thread_has_ended": Attack(code=LEADER_ENDED.format(99)),
    "streams_that_nobody_reads": Attack(code=STREAMS.format(99)),
    "datagrams_that_nobody_reads": Attack(code=DATAGRAMS.format(99)),
    "datagrams_of_closed_sockets": Attack(code=CLOSED_SENDERS),
    "sockets_that_are_on_their_way": Attack(code=IN_FLIGHT),
    "internet_streams_that_nobody_reads": Attack(code=TCP),
    "internet_datagrams_that_nobody_reads": Attack(code=UDP),
}
SPENDERS = {
    "children_that_nobody_waits_for": Attack(code=NOBODY_WAITS.format(0.1)),
    "brief_children_that_nobody_waits_for": Attack(code=NOBODY_WAITS.format(0.005)),
    "orphans": Attack(code=SPIN + "while True:\n  if os.fork() == 0:\n    if os.fork() == 0: spin(0.05)\n"
                      "    os._exit(0)\n"
                      "  os.wait(); time.sleep(0.02)"),
    "children_that_are_waited_for": Attack(code=SPIN + "while True:\n" + CHILD.format(0.01) + "  os.wait()"),
    "threads": Attack(code=SPIN + "while True: t = threading.Thread(target=spin, args=(0.02,)); t.start(); t.join()"),
    "thread_of_an_ended_first_thread": Attack(code=SPIN + "threading.Thread(target=spin, args=(99,)).start()\n"
                                              "import ctypes; ctypes.CDLL(None).syscall(60, 0)"),
    "session_of_its_own": Attack(code=SPIN + "if os.fork() == 0: os.setsid(); spin(99)\ntime.sleep(99)"),
    "process_that_changes_its_program": Attack(
        code="import os, sys, time\nt = time.monotonic() + 0.02\nwhile time.monotonic() < t: pass\n"
        "os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', sys.orig_argv[-1]])"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOGS)
def test_memory_is_counted_wherever_it_is(walled: Sandbox, name: str) -> None:
    done = attack(walled, HOGS[name].code, MEMORY)
    assert done.ending in stopped(RunEnding.MEMORY, RunEnding.SIGNALED), done
    assert done.ending is RunEnding.MEMORY or isinstance(walled, DockerSandbox)


@pytest.mark.parametrize("name", SPENDERS)
def test_processor_time_is_counted_whoever_uses_it(walled: Sandbox, name: str) -> None:
    done = attack(walled, SPENDERS[name].code, CPU)
    assert done.ending is RunEnding.CPU_TIME, done
    assert done.seconds < 10


def test_socket_buffers_cannot_be_made_larger(walled: Sandbox) -> None:
    code = (
        "import socket\na, b = socket.socketpair()\nold = a.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)\n"
        "for size in (socket.SO_SNDBUF, socket.SO_RCVBUF): a.setsockopt(socket.SOL_SOCKET, size, 2**24)\n"
        "a.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)\n"
        "print(a.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == old, a.getsockopt(socket.SOL_SOCKET, 9))"
    )
    assert attack(walled, code).stdout == b"True 1\n"


INNOCENT = {
    "sleeping_children": "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(60):\n"
    "  if os.fork() == 0:\n    time.sleep(0.005)\n    os._exit(0)\n  time.sleep(0.01)",
    "brief_children": "import os\nfor _ in range(40):\n  if os.fork() == 0: os._exit(0)\n  os.wait()",
    "a_few_sockets": "import socket\nheld = [socket.socketpair() for _ in range(10)]",
    "some_shared_memory": "import mmap\nheld = mmap.mmap(-1, 2**24)\nheld.write(bytes(2**24))",
}


@pytest.mark.parametrize("name", INNOCENT)
def test_programs_within_their_limits_are_not_stopped(walled: Sandbox, name: str) -> None:
    done = attack(walled, INNOCENT[name] + "\nprint('good')", CPU)
    assert done.stdout == b"good\n", done


SESSION = Limits(wall_s=20.0, cpu_s=20.0, memory=96 * MIB, processes=16, open_files=64, output=10_000, disk=MIB)
LATER = "import threading\nthreading.Timer(0.1, exec, [{!r}, {{}}]).start()"
IN_SESSIONS = {
    "shared_pages_that_no_page_table_maps": (SHARED_UNSEEN.format(9), RunEnding.MEMORY),
    "shared_pages_that_are_partly_unmapped": (SHARED_PARTLY_UNMAPPED.format(9), RunEnding.MEMORY),
    "shared_pages_that_ended_children_wrote": (SHARED_BY_CHILDREN.format(9), RunEnding.MEMORY),
    "page_tables": (PAGE_TABLES.format(9), RunEnding.MEMORY),
    "processes_whose_first_thread_has_ended": (
        LEADER_ENDED.format(9), RunEnding.MEMORY),
    "streams_that_nobody_reads": (STREAMS.replace("range(60)", "range(25)").replace("range(3)", "range(4)").format(9),
                                  RunEnding.MEMORY),
    "many_processes": ("import os, time\nany(os.fork() == 0 for _ in range(60)); time.sleep(9)",
                       RunEnding.PROCESSES),
}  # fmt: skip


@pytest.mark.parametrize("when", ["during_a_run", "after_a_run"])
@pytest.mark.parametrize("name", IN_SESSIONS)
def test_limits_of_a_session_hold_during_and_after_a_run(bwrap: Sandbox, name: str, when: str) -> None:
    code, ending = IN_SESSIONS[name]
    with PythonSession(SESSION) as good, PythonSession(SESSION) as python:
        good.run("x = 42")
        result = python.run(code if when == "during_a_run" else LATER.format(code))
        until = time.monotonic() + 15
        while result.error is None and time.monotonic() < until:
            time.sleep(0.3)
            result = python.run("1")
        assert (result.error, result.ending) == ("SessionEnded", ending)
        assert good.run("x").output == "42\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [SPIN + "threading.Thread(target=spin, args=(99,), daemon=True).start()",
     SPIN + "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nif os.fork() == 0: spin(99)",
     SPIN + "def run():\n  while True:\n" + CHILD.format(0.05).replace("  if", "    if").replace("\n    ", "\n      ")
     + WAIT.replace("  try", "    try").replace("\n  ex", "\n    ex")
     + "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nthreading.Thread(target=run).start()"],
    ids=["in_a_thread", "in_a_child", "in_brief_children"],
)  # fmt: skip
def test_processor_time_of_a_session_is_limited_after_a_run(bwrap: Sandbox, code: str) -> None:
    with PythonSession(replace(SESSION, cpu_s=0.2)) as python:
        assert python.run(code).error is None
        until = time.monotonic() + 30  # 2 * 0.2 + 2 seconds of processor time; more on a busy machine
        while not has_ended(python) and time.monotonic() < until:
            time.sleep(0.1)
        result = python.run("1")
        assert (result.error, result.ending) == ("SessionEnded", RunEnding.CPU_TIME)


def has_ended(python: PythonSession) -> bool:
    """Tell whether the host could see the end of a session's process, without a run."""
    remote = python._remote
    assert remote is not None
    return bool(python._supervisor.request("ending", id=remote.id)["ending"] != "EXITED")


HALF = {
    "half_a_head": ("os.write(3, b'\\x02\\0\\0')", "time.sleep(99)", RunEnding.WALL_TIME),
    "half_of_its_fields": ("os.write(3, b'\\x02\\0\\0\\0\\0\\0\\0\\0{')", "time.sleep(99)", RunEnding.WALL_TIME),
    "half_of_its_output": ("os.write(3, b'\\x02\\0\\0\\0\\x09\\0\\0\\0{}')", "time.sleep(99)", RunEnding.WALL_TIME),
    "byte_by_byte": ("os.write(3, b'\\x02\\0\\0\\0\\x00\\x20\\0\\0{}')",
                     "while True: os.write(3, b'x'); time.sleep(0.01)", RunEnding.WALL_TIME),
    "and_takes_memory": ("os.write(3, b'\\x02\\0\\0')",
                         "m = mmap.mmap(-1, 2**28); m.write(bytes(2**26)); m.write(bytes(2**26)); time.sleep(99)",
                         RunEnding.MEMORY),
    "and_takes_time": ("os.write(3, b'\\x02\\0\\0')", "while True: pass", RunEnding.CPU_TIME),
    "and_starts_processes": ("os.write(3, b'\\x02\\0\\0')",
                             "any(os.fork() == 0 for _ in range(30)); time.sleep(99)", RunEnding.PROCESSES),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HALF)
def test_limits_hold_while_an_answer_is_half_written(bwrap: Sandbox, name: str) -> None:
    writes, then, ending = HALF[name]
    limits = replace(SESSION, wall_s=0.5 if ending is RunEnding.WALL_TIME else 20.0, cpu_s=0.3)
    deaf = "import mmap, os, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    with PythonSession(limits) as python:
        result = python.run(f"{deaf}{writes}\n{then}")
        assert (result.error, result.ending) == ("SessionEnded", ending)
        assert result.seconds < 10
        assert python.run("os").error == "NameError"
