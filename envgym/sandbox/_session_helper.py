"""The helper processes of a session supervisor: they copy files for clones, and check that clones share nothing.

A helper serves one request after another: a new process costs more than most of what it does. It runs as the supervisor
and never an agent's code. Standard library only; it runs inside sandboxes.
"""

import json
import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from envgym.sandbox._namespaces import NO_DEV, NO_SUID, clean_descriptors, enter, map_user, mount
from envgym.sandbox._processes import OUTPUT, WORK, CloneRefused, check_alone, clones_by_socket, stop

MAX_PACKET = 150_000
DONE = "done"
"""What a helper says when it has done its work; else it says why that is refused."""
_WORK_S = 20
"""Seconds that it may take."""


class HelperProcess(NamedTuple):
    """A helper process, and the socket to it."""

    pid: int
    channel: socket.socket


def start_helper() -> HelperProcess:
    """Start a helper process; it ends with its socket, and when a task takes too long."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return HelperProcess(_fork(partial(_help, theirs)), ours)


def _help(channel: socket.socket) -> None:
    """Serve as a helper process: do what is asked for, say `DONE` or why it is refused.

    What a session changes meanwhile is its own fault.
    """
    clean_descriptors([channel.fileno()])
    while request := channel.recv(MAX_PACKET):
        name, arguments = json.loads(request)
        signal.alarm(_WORK_S)
        try:
            _WORK[name](*arguments)
            said = DONE
        except CloneRefused as error:
            said = str(error)
        except Exception as error:  # noqa: BLE001  # a hostile process may make /proc say anything
            said = f"it changes while it is copied ({type(error).__name__})"
        signal.alarm(0)
        channel.send(said.encode())


def _fork(work: Callable[[], None]) -> int:
    """Run `work` in a child process that exits with 0 when it is done; return the child."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return process


# ---- what they do ----------------------------------------------------------------------------------------------------


def _copy_files(origin: int, sockets: list[str], sizes: tuple[int, int], user: str) -> None:
    """Stop a session, and give each of its clones a copy of the files that it sees. Raises: CloneRefused."""
    stop(origin)
    copying = [_fork(partial(_give_files, pid, sizes, user)) for pid in clones_by_socket(origin, sockets)]
    statuses = [os.waitpid(process, 0)[1] for process in copying]
    if any(statuses):
        raise CloneRefused("its files could not be copied")


def _check_clones(ids: list[int], sockets: list[str]) -> None:
    """Stop clones, and see that they hold nothing of others. Raises: CloneRefused."""
    for pid, own in zip(ids, sockets, strict=True):
        stop(pid)
        check_alone(pid, own)


def _give_files(pid: int, sizes: tuple[int, int], user: str) -> None:
    """Give a clone a disk of its own, with a copy of what it sees there; this process enters its namespaces."""
    signal.alarm(_WORK_S)
    enter(pid, "user")
    map_user(pid, user)
    enter(pid, "ipc", "mnt")
    old = os.open(WORK, os.O_RDONLY | os.O_DIRECTORY)
    mount_places(*sizes)
    if os.listdir(old):
        os.fchdir(old)
        shutil.copytree(".", WORK, symlinks=True, dirs_exist_ok=True, ignore=_special)


def mount_places(disk: int, output: int) -> None:
    """Mount what a session can write: its files, and what it has said (so that a full disk can still be told)."""
    for path, size, num_files in (WORK, disk, 50_000), (OUTPUT, size_of_output(output), 100):
        mount("tmpfs", path, NO_SUID | NO_DEV, f"size={size},nr_inodes={num_files},mode=700")


def size_of_output(output: int) -> int:
    """Return the bytes of the place where a session's output of at most `output` bytes lies."""
    return 2 * output + 2**17


def _special(directory: str, names: list[str]) -> list[str]:
    """Return what is no file, directory or link: pipes and sockets are not copied."""
    paths = {name: os.lstat(os.path.join(directory, name)).st_mode for name in names}
    return [
        name for name, mode in paths.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    ]


_WORK: Mapping[str, Callable[..., None]] = {"copy": _copy_files, "check": _check_clones}
