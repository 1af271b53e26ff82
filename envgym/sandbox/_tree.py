"""What a process and all its descendants use, read from /proc. Standard library only: it also runs inside sandboxes."""

import os
from contextlib import suppress
from typing import NamedTuple

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAX_LOOKED_AT = 2000


class Usage(NamedTuple):
    """Totals over a tree of processes."""

    cpu_s: float
    """Living and waited-for processes."""
    memory: int
    """Resident bytes; what processes share counts once per process."""
    processes: int
    """Threads count too."""


def descendants(pid: int) -> list[int]:
    """Return `pid` and the processes below it; those that end meanwhile may be missing."""
    found: list[int] = []
    queue = [pid]
    while queue and len(found) < _MAX_LOOKED_AT:
        current = queue.pop()
        found.append(current)
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{current}/task"):
                with suppress(OSError), open(f"/proc/{current}/task/{thread}/children", encoding="ascii") as children:
                    queue.extend(int(child) for child in children.read().split())
    return found


def usage(pid: int) -> Usage:
    """Return what `pid` and its descendants use."""
    cpu, memory, processes = 0, 0, 0
    for current in descendants(pid):
        with suppress(OSError), open(f"/proc/{current}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
            cpu += sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
            processes += int(fields[17])
            memory += int(fields[21]) * _PAGE
    return Usage(cpu * _TICK_S, memory, processes)


def shared_once(pid: int) -> int:
    """Return the resident bytes of a tree, shared pages divided among those who share them."""
    total = 0
    for current in descendants(pid):
        with suppress(OSError), open(f"/proc/{current}/smaps_rollup", "rb") as rollup:
            total += sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith(b"Pss:"))
    return total
