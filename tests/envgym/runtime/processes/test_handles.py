"""Processes of this machine, by the variables with which they were started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envgym.runtime.processes.handles import kill_marked


@pytest.mark.skipif(sys.platform != "linux", reason="variables of processes are read in /proc")
def test_only_processes_with_exactly_the_variable_are_killed(tmp_path: Path) -> None:
    value = str(tmp_path)  # no other process of the machine has it
    values = (value, f"{value}2", "b", value)
    command = [sys.executable, "-S", "-c", "print(flush=True); input()"]
    children = [
        subprocess.Popen(command, env=os.environ | {"MARK": item}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for item in values
    ]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()  # it has been started
        kill_marked("MARK", value)
        assert [children[place].wait(30) for place in (0, 3)] == [-9, -9]
        for child in children[1:3]:
            child.communicate(b"\n", timeout=30)
        assert [child.returncode for child in children] == [-9, 0, 0, -9]
    finally:
        for child in children:
            child.kill()
            child.communicate()
