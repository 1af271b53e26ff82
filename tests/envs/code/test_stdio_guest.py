"""The forks that run Python programs of `code/stdio-v0` behave as interpreters of their own, and share nothing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envgym.envs.code import stdio
from tests.support.env_server import wait_until

PROGRAMS = {
    "reads and writes": "print(int(input()) + 1)",
    "leaves a file open": "out = open(1, 'w', closefd=False)\nout.write('kept')",
    "replaces its output": "import io, sys\nprint('kept')\nsys.stdout = io.StringIO()\nprint('lost')",
    "closes its output": "import sys\nprint('kept')\nsys.stdout.close()",
    "has threads and exit functions": "import atexit, threading, time\natexit.register(print, 'last')\n"
    "threading.Thread(target=lambda: (time.sleep(0.02), print('thread'))).start()\nprint('first')",
    "has objects that speak at the end": "class A:\n  def __del__(self): print('gone', x)\nx = 3\na = A()\na.a = a",
    "exits with a number": "print(1)\nraise SystemExit(257)",
    "exits with a text": "import sys\nsys.exit('bad')",
    "fails in a function": "def f():\n  return 1 / 0\nf()",
    "is no Python": "x = = 1",
    "is killed": "import os\nos.kill(os.getpid(), 15)",
    "names itself": "import sys\nprint(__name__, __file__, sys.argv, sys.flags, sys.path, __builtins__)",
    "pickles its own class": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
    "has another encoding": "# coding: latin-1\nprint('\xe9')",
}


def run_guest(directory: Path, program: str, num_inputs: int = 1, **changes: Any) -> list[stdio._EndedProcess]:
    """Return how a program ended on inputs 0, 1 ..."""
    (directory / "main.py").write_text(program, encoding="latin-1")
    for number in range(num_inputs):
        (directory / f"input.{number}").write_text(str(number))
    job = {"compile": None, "run": None, "file": "main.py", "seconds": 20.0, "num_inputs": num_inputs, "stops": False}
    argv = [sys.executable, "-I", "-S", "-c", stdio._GUEST_SCRIPT.read_text(), repr(job | changes)]
    done = subprocess.run(argv, cwd=directory, capture_output=True, check=True)
    assert done.stderr == b""
    return stdio._read_processes(done.stdout, num_inputs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fork_does_what_an_interpreter_does(tmp_path: Path, name: str) -> None:
    (found,) = run_guest(tmp_path, PROGRAMS[name])
    argv = [sys.executable, "-I", "-S", "main.py"]
    done = subprocess.run(argv, cwd=tmp_path, input=b"0", capture_output=True, check=False)
    assert found == (str(done.returncode), done.stdout.decode(errors="replace"), done.stderr.decode())


def test_a_fork_sees_nothing_of_the_one_before(tmp_path: Path) -> None:
    program = "import builtins\nbuiltins.seen = getattr(builtins, 'seen', 0) + 1\nprint(builtins.seen, input())"
    assert run_guest(tmp_path, program, 3) == [("0", f"1 {number}\n", "") for number in range(3)]


def test_a_program_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    program = "import os, time\nif os.fork():\n  print(os.getpid(), flush=True)\ntime.sleep(600)"
    ((code, out, _),) = run_guest(tmp_path, program, seconds=0.5)
    assert code == "time"
    group = int(out)  # killed; the system may not have taken it away yet
    wait_until(lambda: group not in map(_group, Path("/proc").glob("[0-9]*/stat")))


def _group(stat: Path) -> int:
    """Return a process' group, 0 where it has ended."""
    try:
        state, _, group = stat.read_text().rpartition(") ")[2].split()[:3]
    except OSError:
        return 0
    return 0 if state in "ZX" else int(group)


def test_the_tests_stop_at_a_failure_where_only_all_of_them_pay(tmp_path: Path) -> None:
    program = "x = 1 / int(input())"
    assert [code for code, _, _ in run_guest(tmp_path, program, 3)] == ["1", "0", "0"]
    assert [code for code, _, _ in run_guest(tmp_path, program, 3, stops=True)] == ["1"]


@pytest.mark.parametrize("reply", [b"", b"0 1\n", b"0 x y\n", b"0 " + b"9" * 40 + b" 0\n", b"\xff 0 0\n", b"0 1 1"])
def test_a_forged_reply_is_no_grade_or_pays_nothing(reply: bytes) -> None:
    grade = stdio._grade_program(reply, [stdio.StdioCase(input="", output="3")] * 2, is_compiled=False)
    assert grade is None or not any(grade.passed)
