"""A session keeps its state, shows what a person would see, and forks into sessions that cannot meet."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from envgym.errors import ForkUnsupported, InvalidInput, ToolError, ToolInfraFailure
from envgym.sandbox import MIB, Limits, PythonSession, RunEnding, Sandbox, session
from envgym.sandbox._supervisor_client import shared_supervisor
from envgym.sandbox._tree import descendants
from tests.envgym.sandbox.processes import running

LIMITS = Limits(wall_s=20.0, cpu_s=0.5, memory=128 * MIB, processes=16, open_files=64, output=10_000, disk=MIB)
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"


@pytest.fixture
def python(bwrap: Sandbox) -> Iterator[PythonSession]:
    with PythonSession(LIMITS) as opened:
        yield opened


def shown(python: PythonSession, code: str) -> str:
    return python.run(code).output


def test_a_new_session_does_not_mind_that_the_supervisor_of_others_was_killed(python: PythonSession) -> None:
    assert shown(python, "1") == "1\n"
    for pid in running(rb"envgym\.sandbox\._supervisor"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    with PythonSession() as fresh:
        assert shown(fresh, "2") == "2\n"
    with pytest.raises(ToolInfraFailure):
        python.run("1")


def test_state_is_kept_and_the_last_expression_is_shown(python: PythonSession) -> None:
    assert shown(python, "import math\ndef double(x): return 2 * x\nx = 20") == ""
    assert shown(python, "x += 1\nprint('x is', x)\ndouble(x)") == "x is 21\n42\n"
    assert shown(python, "_ + 1; None") == ""
    assert shown(python, "double(_)") == "84\n"


def test_traceback_shows_the_agents_code_only(python: PythonSession) -> None:
    python.run("def half(x):\n    return x / 0")
    turn = python.run("y = 1\nhalf(y)")
    assert turn.error == "ZeroDivisionError"
    assert turn.output == (
        "Traceback (most recent call last):\n"
        '  File "<turn 2>", line 2, in <module>\n    half(y)\n'
        '  File "<turn 1>", line 2, in half\n    return x / 0\n            ~~^~~\n'
        "ZeroDivisionError: division by zero\n"
    )
    broken = python.run("def f(:\n  pass")
    assert (broken.error, broken.output.splitlines()[-1]) == ("SyntaxError", "SyntaxError: invalid syntax")
    assert python.run("import sys; sys.exit(3)").error == "SystemExit"
    assert shown(python, "y") == "1\n"


def test_output_of_programs_and_bytes_that_are_no_text_are_shown_in_order(python: PythonSession) -> None:
    code = (
        "import os, subprocess\nprint('a')\nsubprocess.run(['echo', 'b'])\nos.write(2, b'\\xff\\n')\nprint('\\ud800')"
    )
    assert shown(python, code) == "a\nb\n\ufffd\n\\ud800\n"


def test_output_is_bounded(python: PythonSession) -> None:
    said = shown(python, "print('a' * 20_000 + 'z' * 2_500)")  # and a newline: 12,501 bytes too many
    note = "\n[cut: 12501 bytes]\n"
    assert said == "a" * (7_500 - len(note)) + note + "z" * 2_499 + "\n"
    assert shown(python, "for _ in range(10**6): print('x' * 10_000)").endswith("No space left on device\n")
    assert shown(python, "open('x', 'wb').write(bytes(2**20)); open('y', 'wb', buffering=0).write(b'1')").endswith(
        "device\n"
    )
    assert shown(python, "1") == "1\n"


def test_a_limit_interrupts_the_code_and_keeps_the_state(python: PythonSession) -> None:
    python.run("x = 1")
    python.limits = replace(LIMITS, cpu_s=0.05)
    turn = python.run("x = 2\nwhile True: pass")
    assert (turn.ending, turn.error) == (RunEnding.CPU_TIME, "KeyboardInterrupt")
    assert turn.output.splitlines()[-3:] == [
        '  File "<turn 2>", line 2, in <module>',
        "    while True: pass",
        "KeyboardInterrupt",
    ]
    assert shown(python, "x") == "2\n"


@pytest.mark.parametrize(
    "code, ending",
    [
        (DEAF, RunEnding.CPU_TIME),
        ("import os; os._exit(0)", RunEnding.EXITED),
        ("import os; os.abort()", RunEnding.EXITED),
        ("import ctypes; ctypes.string_at(0)", RunEnding.EXITED),
        (
            "import mmap, time\nm = mmap.mmap(-1, 2**28)\nfor i in range(2**8): m.write(bytes(2**20))\ntime.sleep(9)",
            RunEnding.MEMORY,
        ),
    ],
)
def test_dead_process_ends_a_turn_and_the_next_starts_anew(python: PythonSession, code: str, ending: RunEnding) -> None:
    python.run("x = 1")
    python.limits = replace(LIMITS, cpu_s=0.05 if code == DEAF else 9.0)
    turn = python.run(code)
    assert (turn.error, turn.ending) == ("SessionEnded", ending)
    assert turn.output.startswith("The Python process has ended")
    assert python.run("x").error == "NameError"


@pytest.mark.parametrize(
    "code, says",
    [
        ("bytearray(10**9)", "MemoryError"),
        ("open('x', 'wb').write(bytes(2**21))", "OSError"),
        ("import subprocess; p = subprocess.Popen(['sleep', '9']); p.kill(); p.wait()", "-9"),
        ("import os; os.kill(1, 9); os.kill(os.getppid(), 9); 'alive'", "'alive'"),
        ("import os; os.kill(0, 9); 7 * 6", "42"),
        ("import os; os.listdir('/proc')", "[]"),
        ("import socket; socket.socket()", "Address family not supported"),
        ("import socket; socket.socket(socket.AF_UNIX)", "Address family not supported"),
        ("open('/x', 'w')", "Read-only file system"),
        ("import os; os.getuid(), os.environ.get('SECRET')", "(1000, None)"),
        ("import sys; sys.stdout.close(); sys.stderr = None", ""),
        ("import os; os.close(1); os.close(2)", ""),
        ("input()", "EOFError"),
    ],
)
def test_session_outlives_code(python: PythonSession, code: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "42")
    python.run("x = 1")
    assert says in shown(python, code)
    assert python.run("assert x == 1").error is None


def test_files_are_written_and_read(python: PythonSession) -> None:
    python.write_file("data/in.bin", bytes(range(256)))
    python.run("open('out.bin', 'wb').write(open('data/in.bin', 'rb').read()[::-1])")
    assert python.read_file("out.bin") == bytes(range(255, -1, -1))
    with pytest.raises(ToolError, match="No such file"):
        python.read_file("missing")
    with pytest.raises(ToolError, match="No space left"):
        python.write_file("big", bytes(2 * MIB))


# ---- forks ----------------------------------------------------------------------------------------------------------


def test_fork_goes_its_own_way_in_variables_files_directory_and_random_numbers(python: PythonSession) -> None:
    python.run(
        "import os, random\nx = [1]\nos.mkdir('d'); os.chdir('d'); os.symlink('log', 'link')\n"
        "f = open('log', 'a+'); f.write('start '); f.flush()"
    )
    with python.fork() as twin:
        assert (
            shown(twin, "x.append(2); f.write('twin'); f.flush(); x, open('link').read()") == "([1, 2], 'start twin')\n"
        )
        assert shown(python, "f.write('self'); f.flush(); x, open('link').read()") == "([1], 'start self')\n"
        assert shown(python, "os.getcwd(), os.listdir('.')") == shown(twin, "os.getcwd(), os.listdir('.')")
        assert shown(python, "random.random(), id(x)") == shown(twin, "random.random(), id(x)")


def test_forks_of_forks_are_all_alike_and_all_apart(python: PythonSession) -> None:
    python.run("x = ['root']")
    level = [python]
    for depth in range(3):
        level = [fork for parent in level for fork in (parent, parent.fork())]
        for number, fork in enumerate(level):
            fork.run(f"x.append(({depth}, {number}))")
    said = [shown(fork, "x") for fork in level]
    # 8 paths of a binary tree: the parent of number n is number n // 2 a level above.
    assert said == [f"{['root', (0, n // 4), (1, n // 2), (2, n)]!r}\n" for n in range(8)]


def test_many_forks_of_one_state_do_not_nest_deeper_and_deeper(python: PythonSession) -> None:
    python.run("x = 1")
    forks = [python.fork() for _ in range(40)]  # namespaces nest 32 deep at most
    assert [shown(fork, f"x += {number}; x") for number, fork in enumerate(forks)] == [f"{1 + n}\n" for n in range(40)]
    assert shown(python, "x") == "1\n"


@pytest.mark.slow
def test_a_chain_of_forks_ends_with_a_refusal_and_the_session_goes_on(python: PythonSession) -> None:
    def fork_and_run(times: int) -> None:
        for _ in range(times):
            python.fork().close()
            python.run("x += 1")

    python.run("x = 0")
    with pytest.raises(ForkUnsupported, match="a chain of too many forks"):
        fork_and_run(40)
    assert 24 <= int(shown(python, "x")) < 40


def test_live_forks_are_capped(python: PythonSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_LIVE_FORKS", 3)
    python.run("x = 1")
    first, second = python.fork(), python.fork()
    with pytest.raises(ForkUnsupported, match="live forks must be at most 3, got 4"):
        python.fork()
    second.close()
    assert shown(first.fork(), "x") == "1\n"


def test_fork_of_a_session_without_a_process_is_a_new_session(python: PythonSession) -> None:
    with python.fork() as twin:
        assert shown(twin, "1 + 1") == "2\n"


@pytest.mark.parametrize(
    "code, reason",
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "goes on"),
        ("import subprocess; p = subprocess.Popen(['sleep', '9'])", "programs of its own"),
        ("import mmap; m = mmap.mmap(-1, 4096)", "memory that others may hold"),
        ("import os; os.mkdir('d'); os.chdir('d'); os.rmdir('../d')", "No such file"),
        ("import gc; i = [o for o in gc.get_objects() if type(o).__name__ == 'Interpreter'][0]\n"
         "type(i).do_refresh = lambda *a: ({}, b'')", "not its own"),
        ("import os, gc; i = [o for o in gc.get_objects() if type(o).__name__ == 'Interpreter'][0]\n"
         "r, w = os.pipe(); type(i)._open_files = lambda *a: []", "descriptor that others may hold"),
        ("import sys; m = sys.modules['envgym.sandbox._interpreter']; m.drop_capabilities = lambda: None",
         "kept rights"),
        ("import sys; m = sys.modules['envgym.sandbox._interpreter']; m.clone_into_namespaces = __import__('os').fork",
         "programs of its own"),
        ("import os; os.setsid = lambda: None", "process group with others"),
    ],
)  # fmt: skip
def test_what_forks_share_is_refused_and_the_session_goes_on(python: PythonSession, code: str, reason: str) -> None:
    python.run("x = 1")
    assert python.run(code).error is None
    if reason == "goes on":  # threads stay behind in the process that stands still
        assert shown(python.fork(), "x") == "1\n"
        return
    with pytest.raises(
        ForkUnsupported, match=f"session must be a single process with one thread at a fork, got .*{reason}"
    ):
        python.fork()
    assert shown(python, "x") == "1\n"


ATTACK = """
import os, glob, signal
def attempt(call, *args):
    try:
        return call(*args)
    except Exception:
        return None
for pid in range(2, 60):
    attempt(os.kill, pid, signal.SIGKILL)
attempt(os.kill, -1, signal.SIGKILL)
for descriptor in range(4, 64):  # 3 is the session's own channel
    attempt(os.write, descriptor, b'stolen')
attempt(os.write, pipe[1], b'stolen')
attempt(os.write, plain, b'stolen')
attempt(lambda: os.close(os.open('stolen', os.O_CREAT, dir_fd=directory)))
attempt(lambda: open('/tmp/stolen', 'w').write('stolen'))
attempt(lambda: open('/dev/shm/stolen', 'w').write('stolen'))
attempt(lambda: open('/dev/pts/0', 'w').write('stolen'))
attempt(lambda: open('../stolen', 'w').write('stolen'))
os.listdir('/proc')
"""
LOOK = """
seen = [path for top in ('/tmp', '/dev/shm', '/dev/pts', '/proc') for path in glob.glob(top + '/**', recursive=True)]
'stolen' in str(seen), attempt(os.read, pipe[0], 9), os.stat('plain').st_size, x
"""


def test_forks_cannot_see_signal_or_write_each_other(python: PythonSession) -> None:
    python.run(
        "import os, glob\nx = 1\npipe = os.pipe(); os.set_blocking(pipe[0], False)\ndef attempt(call, *args):\n"
        "  try: return call(*args)\n  except Exception: return None\n"
        "plain = os.open('plain', os.O_CREAT | os.O_RDWR); directory = os.open('.', os.O_RDONLY)"
    )
    with python.fork() as twin, python.fork() as other:
        assert shown(twin, "os.kill(0, 9); x") == "1\n"
        assert shown(twin, ATTACK).endswith("[]\n")
        for sibling in (python, other):
            assert shown(sibling, LOOK).replace("b''", "None") == "(False, None, 0, 1)\n"


# ---- ends -----------------------------------------------------------------------------------------------------------


def num_processes() -> int:
    shared_supervisor().sweep()
    return len(descendants(os.getpid()))


def falls_to(count: int, seconds: float = 5.0) -> bool:
    """Tell whether there are no more than so many processes once those that were killed have ended."""
    until = time.monotonic() + seconds
    while num_processes() > count and time.monotonic() < until:
        time.sleep(0.01)
    return num_processes() <= count


def test_closed_and_forgotten_sessions_leave_no_process_and_no_descriptor(python: PythonSession) -> None:
    python.run("1")
    python.fork().close()
    before, descriptors = num_processes(), len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with PythonSession(LIMITS) as other:
            other.run("import subprocess; p = subprocess.Popen(['sleep', '99'])")
            other.run("p.kill(); p.wait()")
            forks = [other.fork().fork() for _ in range(2)]
            forks[0].run("import subprocess; p = subprocess.Popen(['sleep', '99'])")
            forks[1].close()
            del forks
    assert falls_to(before)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_helper_processes_do_not_add_up_over_forks_in_a_row(bwrap: Sandbox) -> None:
    shared_supervisor().close()
    with PythonSession(LIMITS) as python:
        python.run("1")
    without = {*descendants(os.getpid())}
    helpers = []
    for _ in range(2):
        with PythonSession(LIMITS) as python:
            python.run("1")
            python.fork().close()
        assert falls_to(len(without) + 2)  # one to copy, which is new for each fork, and one to check
        helpers.append({*descendants(os.getpid())} - without)
    assert len(helpers[0]) == len(helpers[1]) == 2
    assert len(helpers[0] & helpers[1]) == 1


def test_a_closed_session_is_refused(python: PythonSession) -> None:
    python.close()
    python.close()
    with pytest.raises(InvalidInput, match="session must be open"):
        python.run("1")


def test_a_killed_sandbox_is_an_infrastructure_failure_and_is_replaced(python: PythonSession) -> None:
    python.run("x = 1")
    os.kill(running(rb"envgym\.sandbox\._supervisor")[0], signal.SIGKILL)
    with pytest.raises(ToolInfraFailure, match="sandbox of the sessions must be able to serve"):
        python.run("import time; time.sleep(9)")
    with PythonSession(LIMITS) as other:
        assert shown(other, "1") == "1\n"


def test_exit_and_quit_end_a_run_and_the_session_goes_on(python: PythonSession) -> None:
    for name in ("exit", "quit"):
        turn = python.run(f"x = 1\nprint(x)\n{name}()\nprint(2)")
        assert turn.error == "SystemExit"
        assert turn.output.startswith("1\n")
    assert shown(python, "x") == "1\n"
    assert shown(python.fork(), "exit.__name__ and x") == "1\n"


def test_integers_of_any_length_are_shown(python: PythonSession) -> None:
    assert shown(python, "len(str(3**10000)), int('7' * 5000) % 10") == "(4772, 7)\n"
