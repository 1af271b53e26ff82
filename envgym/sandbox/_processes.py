"""Stopping, ending and looking at processes, by /proc. Standard library only: it runs inside sandboxes."""

import os
import select
import signal
import time
from contextlib import suppress

from envgym.sandbox._tree import descendants

_STOP_S = 5.0
_DYING_S = 1.0


class CloneRefused(Exception):
    """A session cannot be copied; the reason is for the host."""


def status_of(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status. Raises: OSError: there is no such process."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def state_of(pid: int) -> str:
    """Return the letter of a process' state, X where there is none."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return chr(file.read().rpartition(b") ")[2][0])
    return "X"


def stop(pid: int) -> None:
    """Stop all threads of a process. Raises: CloneRefused: it is gone."""
    deadline = time.monotonic() + _STOP_S
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    while (state := state_of(pid)) != "T":
        if state in "XZ" or time.monotonic() > deadline:
            raise CloneRefused("its process has ended" if state in "XZ" else "its process does not stop")
        time.sleep(0.0002)


def end(pid: int) -> None:
    """Kill a process, and with it its namespace; a zombie may be left to its parent, which stands still."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    select.select([process], [], [], _DYING_S)
    os.close(process)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def children_of(pid: int) -> list[int]:
    """Return the living children of a process."""
    return [child for child in descendants(pid)[1:] if _is_child(child, pid)]


def _is_child(pid: int, parent: int) -> bool:
    """Tell whether a process lives and has this parent; its first thread may have ended before others."""
    try:
        status = status_of(pid)
        has_ended = status["State"][0] in "XZ" and status["Threads"] == "1"
        return not has_ended and status["PPid"] == str(parent)
    except (OSError, KeyError):
        return False


def has_own_namespaces(pid: int, other: int) -> bool:
    """Tell whether two processes share none of the namespaces of a session."""
    return all(
        os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/{other}/ns/{kind}")
        for kind in ("user", "pid", "mnt", "ipc")
    )


def sockets_of(pid: int) -> list[str]:
    """Return the sockets that a process holds, as /proc names them."""
    links = []
    with suppress(OSError):  # it has ended
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it has closed this one
                links.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return [link for link in links if link.startswith("socket:")]
