"""Stopping, ending and checking processes, by /proc. Standard library only: it runs inside sandboxes."""

import os
import re
import select
import signal
import stat
import time
from contextlib import suppress
from typing import NamedTuple

from envgym.sandbox._tree import descendants, sockets_of

WORK, OUTPUT = "/tmp", "/dev/shm"
"""What a session can write: its files, and its output."""
_STOP_S = 5.0
_DYING_S = 1.0
_SHARED_MAPPING = re.compile(rb"^\S+ \S{3}s \S+ (\S+)", re.MULTILINE)
"""A line of /proc/PID/maps, and the device of its file."""


class CloneRefused(Exception):
    """A session cannot be copied; the reason is for the host."""


class WrittenFiles(NamedTuple):
    """What lies in the places that a process can write."""

    number: int
    size: int
    """Bytes."""


def written_by(pid: int) -> WrittenFiles:
    """Return the files in a process' private places, none where it has ended: empty ones take memory too."""
    number = size = 0
    for place in (WORK, OUTPUT):
        with suppress(OSError):
            system = os.statvfs(f"/proc/{pid}/root{place}")
            number += system.f_files - system.f_ffree
            size += (system.f_blocks - system.f_bfree) * system.f_frsize
    return WrittenFiles(number, size)


def _status_of(pid: int) -> dict[str, str]:
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
        time.sleep(0.00005)


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
        status = _status_of(pid)
        has_ended = status["State"][0] in "XZ" and status["Threads"] == "1"
        return not has_ended and status["PPid"] == str(parent)
    except (OSError, KeyError):
        return False


def _has_own_namespaces(pid: int, other: int) -> bool:
    """Tell whether two processes share none of the namespaces of a session."""
    return all(
        os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/{other}/ns/{kind}")
        for kind in ("user", "pid", "mnt", "ipc")
    )


def clones_by_socket(origin: int, sockets: list[str]) -> list[int]:
    """Return the clones of a stopped session in the order of their sockets. Raises: CloneRefused: others run too."""
    children = children_of(origin)
    clones = {pid for pid in children if is_apart(pid, origin)}
    by_socket = {socket: pid for pid in clones for socket in sockets_of(pid)}
    ids = [by_socket[socket] for socket in sockets if socket in by_socket]
    if not len(ids) == len(sockets) == len(clones) or {*children, *ids} != clones:
        raise CloneRefused("it has programs of its own running")
    return ids


def is_apart(pid: int, origin: int) -> bool:
    """Tell whether a process lives in namespaces of its own; one that has just ended does not."""
    try:
        return _has_own_namespaces(pid, origin)
    except OSError:
        return False


def check_alone(pid: int, own: str) -> None:
    """See that a stopped clone shares nothing that can be written. Raises: CloneRefused."""
    status = _status_of(pid)
    if status["Threads"] != "1" or len(descendants(pid)) != 1:
        raise CloneRefused("it has threads or programs of its own running")
    if any(int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")):
        raise CloneRefused("it has kept rights")
    if os.getpgid(pid) != pid:
        raise CloneRefused("it is in a process group with others")
    own_places = {os.stat(f"/proc/{pid}/root{path}").st_dev for path in (WORK, OUTPUT)}
    if os.stat(f"/proc/{pid}/cwd").st_dev not in own_places:
        raise CloneRefused("its directory is not its own")
    for number in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        if os.readlink(path) == own:
            continue
        file = os.stat(path)
        is_harmless = stat.S_ISCHR(file.st_mode) and os.path.samestat(file, os.stat(os.devnull))
        if not is_harmless and not (stat.S_ISREG(file.st_mode) and file.st_dev in own_places):
            raise CloneRefused("it holds a descriptor that others may hold")
    if _has_shared_memory(pid):
        raise CloneRefused("it holds memory that others may hold")


def _has_shared_memory(pid: int) -> bool:
    """Tell whether a process holds shared memory that it can write, or can make writable."""
    system = os.stat("/usr").st_dev
    read_only = (
        f"{os.major(system):02x}:{os.minor(system):02x}".encode()
    )  # mounted so: nobody has opened it for writing
    with open(f"/proc/{pid}/maps", "rb") as maps:
        shared = _SHARED_MAPPING.findall(maps.read())
    if {*shared} <= {read_only}:
        return False
    with open(f"/proc/{pid}/smaps", "rb") as details:
        flags = [set(line.split()[1:]) for line in details if line.startswith(b"VmFlags:")]
    return any({b"sh", b"mw"} <= flag_set for flag_set in flags)
