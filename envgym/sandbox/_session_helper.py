"""The helper processes of a session supervisor: they copy files for clones, and check that clones share nothing.

A helper serves one request after another, until it has copied files: it has entered a session's namespaces then, and
ends. It runs as the supervisor and never an agent's code. Standard library only; it runs inside sandboxes.
"""

import json
import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from envgym.sandbox._namespaces import NO_DEV, NO_SUID, clean_descriptors, join, map_user, mount, open_namespace
from envgym.sandbox._processes import OUTPUT, WORK, CloneRefused, check_alone, clones_by_socket, stop

MAX_PACKET = 150_000
COPY, CHECK = "copy", "check"
"""What a helper does."""
_WORK_S = 20
"""Seconds that it may take."""


class HelperProcess(NamedTuple):
    pid: int
    channel: socket.socket


def start_helper() -> HelperProcess:
    """Start a helper process; it ends with its socket, after it has copied files, and when a task takes too long."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = os.fork()
        if process == 0:
            try:
                _help(theirs)
            finally:
                os._exit(0)
        return HelperProcess(process, ours)


def _help(channel: socket.socket) -> None:
    """Serve as a helper process: do what is asked for, answer {"ids"} or why it is {"refused"}.

    What a session changes meanwhile is its own fault.
    """
    clean_descriptors([channel.fileno()])
    is_here = True
    while is_here and (request := channel.recv(MAX_PACKET)):
        name, arguments = json.loads(request)
        is_here = name != COPY
        signal.alarm(_WORK_S)
        answer: dict[str, object]
        try:
            answer = {"ids": _WORK[name](*arguments)}
        except CloneRefused as error:
            answer = {"refused": str(error)}
        except Exception as error:  # noqa: BLE001  # a hostile process may make /proc say anything
            answer = {"refused": f"it changes while it is copied ({type(error).__name__})"}
        signal.alarm(0)
        channel.send(json.dumps(answer).encode())


# ---- what they do ----------------------------------------------------------------------------------------------------


def _copy_files(origin: int, sockets: list[str], sizes: tuple[int, int], user: str) -> list[int]:
    """Stop a session, give each of its clones a disk with a copy of the files that it sees; return the clones.

    This process is in the last one's namespace afterwards. Raises: CloneRefused.
    """
    stop(origin)
    ids = clones_by_socket(origin, sockets)
    mounts = [open_namespace(pid, "mnt") for pid in ids]
    join(open_namespace(origin, "user"))  # which is above those of its clones
    for pid in ids:
        map_user(pid, user)
    for mount_namespace in mounts:
        join(mount_namespace)
        old = os.open(WORK, os.O_RDONLY | os.O_DIRECTORY)
        mount_places(*sizes)
        if os.listdir(old):
            os.fchdir(old)
            shutil.copytree(".", WORK, symlinks=True, dirs_exist_ok=True, ignore=_special)
        os.close(old)
    return ids


def _check_clones(ids: list[int], sockets: list[str]) -> list[int]:
    """Stop clones, see that they hold nothing of others, and return them. Raises: CloneRefused."""
    for pid in ids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    for pid, own in zip(ids, sockets, strict=True):
        stop(pid)
        check_alone(pid, own)
    return ids


def mount_places(disk: int, output: int) -> None:
    """Mount what a session can write: its files, and what it has said (so that a full disk can still be told)."""
    for path, size, num_files in (WORK, disk, 50_000), (OUTPUT, size_of_output(output), 100):
        mount("tmpfs", path, NO_SUID | NO_DEV, f"size={size},nr_inodes={num_files},mode=700")


def size_of_output(output: int) -> int:
    """Return the bytes of the place where a session's output of at most `output` bytes lies."""
    return 2 * output + 2**17


def _special(directory: str, names: list[str]) -> list[str]:
    """Return the names of pipes, sockets and devices, which are not copied."""
    paths = {name: os.lstat(os.path.join(directory, name)).st_mode for name in names}
    return [
        name for name, mode in paths.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    ]


_WORK: Mapping[str, Callable[..., list[int]]] = {COPY: _copy_files, CHECK: _check_clones}
