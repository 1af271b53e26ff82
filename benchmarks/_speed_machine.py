"""The machine that is measured on, and what other work it did meanwhile."""

import ctypes
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

PROC: Final = Path("/proc")
_SET_CHILD_SUBREAPER: Final = 36
"""Of prctl(2)."""


def describe_machine() -> dict[str, Any]:
    info = PROC / "cpuinfo"
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def adopt_orphans() -> None:
    """Let descendants whose parent ends become children of this process, so that they are not taken for other work."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def other_seconds(own: int, proc: Path = PROC) -> float | None:
    """Return a counter of processor seconds: what all but a process and its descendants took, of whole cores.

    It counts what processes took that are alive, and their children that have ended; and the time that the host of a
    virtual machine gave to others. The difference between two calls is other work between them.

    Args:
        own: number of the process that is left out with all below it.
        proc: where the system tells of processes.

    Returns: seconds; None: the system does not tell.
    """
    if not (proc / "stat").exists():
        return None
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    stolen = int((proc / "stat").read_text().split("\n", 1)[0].split()[8])
    total = stolen + sum(count for pid, count in ticks.items() if not _is_below(pid, own, parents))
    return total / os.sysconf("SC_CLK_TCK")


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid not in (root, 0):
        pid = parents.get(pid, 0)
    return pid == root
