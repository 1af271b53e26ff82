"""A program in a fork of the warm process is the program that Python starts from nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import Program, run_program

TELL = """
import atexit, json, os, sys, threading

atexit.register(print, "at exit")
named = sys.modules["__main__"].__dict__ is globals()
print(json.dumps([__name__, named, sys.argv, sys.path, os.getcwd(), dict(os.environ), sys.stdin.read()]))
print(threading.active_count(), os.getpgid(0) == os.getpid())
"""
ENDINGS = ["", "sys.exit(3)", "sys.exit('in words')", "1 / 0", "os._exit(4)", "os.kill(os.getpid(), 9)"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_fork_is_given_and_does_what_a_real_program_is_and_does(ending: str, tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TELL)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")]), "WORD": "ä"}
    for words in (["-c", f"{TELL}\n{ending}", "one", "two"], ["-m", "told", "three"]):
        forked = run_program(*words, given="typed\n", cwd=tmp_path, env=environment)
        command = [sys.executable, *words]
        real = subprocess.run(
            command, input="typed\n", cwd=tmp_path, env=environment, capture_output=True, text=True, process_group=0,
            check=False,
        )  # fmt: skip
        assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
        assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


@pytest.mark.slow
def test_programs_run_beside_each_other_and_are_ended_one_by_one() -> None:
    words = ["-c", "import sys; print('here', flush=True); sys.exit(len(sys.stdin.read()))"]
    with Program(words) as first, Program(words) as second:
        assert [program.stdout.readline() for program in (first, second)] == ["here\n"] * 2
        assert [program.poll() for program in (first, second)] == [None, None]
        second.kill()
        assert second.wait() == -9
        assert first.poll() is None
        assert first.communicate("abc") == ("", "")
        assert first.poll() == 3
