"""Which processes there are below the tests."""

import os
import re

from envgym.sandbox._tree import descendants


def command_of(pid: int) -> bytes:
    """Return the command line of a process, its arguments apart by zero bytes; none where it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            return command.read()
    except OSError:
        return b""


def running(pattern: bytes) -> list[int]:
    return [pid for pid in descendants(os.getpid())[1:] if re.search(pattern, command_of(pid))]
