"""The actor as a plain object: what it starts, what it reads of it, and how it ends it."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from envgym.runtime.ray.actor import ProcessActor


def run(actor: ProcessActor, code: str, directory: Path, **variables: str) -> int:
    return actor.start([sys.executable, "-c", code], variables, str(directory))


def read_all(actor: ProcessActor) -> tuple[list[bytes], int]:
    position, found, deadline = 0, list[bytes](), time.monotonic() + 20
    while time.monotonic() < deadline:
        position, lines, code, _ = actor.read(position, 5.0)
        found += lines
        if code is not None:
            return found, code
    raise AssertionError("the process goes on")


def test_process_has_its_directory_its_variables_and_its_parent(tmp_path: Path) -> None:
    actor = ProcessActor()
    code = "import os; print(os.getcwd(), os.environ['A'], os.environ['ENVGYM_PARENT'], os.getpid() == os.getsid(0))"
    run(actor, code, tmp_path, A="b")
    assert read_all(actor) == ([f"{tmp_path} b {os.getpid()} True\n".encode()], 0)


def test_lines_are_read_again_until_a_later_position_is_asked_for(tmp_path: Path) -> None:
    other = ProcessActor()
    run(other, "print('a'); print('b', flush=True); import time; time.sleep(100)", tmp_path)
    deadline = time.monotonic() + 20
    while len(other.read(0, 1.0)[1]) < 2 and time.monotonic() < deadline:
        pass
    first, again = other.read(0, 0.0), other.read(0, 0.0)
    assert first[:3] == again[:3] == (2, [b"a\n", b"b\n"], None)
    assert first[3] > 1  # MiB
    assert other.read(1, 0.0)[1] == [b"b\n"]
    other.send_signal(signal.SIGKILL)
    assert read_all_from(other, 2) == -signal.SIGKILL


def read_all_from(actor: ProcessActor, position: int) -> int:
    code = None
    while code is None:
        position, _, code, _ = actor.read(position, 5.0)
    return code


def test_signals_reach_the_group_and_a_process_that_is_gone_is_none_to_them(tmp_path: Path) -> None:
    actor = ProcessActor()
    actor.send_signal(signal.SIGTERM)  # nothing was started yet
    run(actor, "import time; time.sleep(100)", tmp_path)
    actor.send_signal(signal.SIGTERM)
    assert read_all(actor) == ([], -signal.SIGTERM)
    actor.send_signal(signal.SIGKILL)


def test_a_process_may_be_started_again_when_it_has_ended(tmp_path: Path) -> None:
    actor = ProcessActor()
    for code in (3, 0):
        run(actor, f"print({code}); raise SystemExit({code})", tmp_path)
        assert read_all(actor) == ([f"{code}\n".encode()], code)


def test_command_that_is_not_there_is_an_error_of_the_call(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ProcessActor().start(["/nowhere/program"], {}, str(tmp_path))
