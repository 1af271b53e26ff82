"""Files that outlive a crash: written whole or not at all, also through a loss of power; and a folder's one writer."""

import errno
import fcntl
import json
import os
import socket
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from envgym.errors import RunError, sentence

LOCK: Final = ".lock"
"""Name of the file that a folder's writer holds."""
PROBE: Final = ".envgym-shared-"
"""How the names of files begin by which nodes of a cluster see that they share a folder."""
SERVERS: Final = "servers.json"
"""Name of the file of a run directory that lists the servers which the run uses."""
LOGS: Final = "logs"
"""Folder of a run directory: a file `ROLE.jsonl` for each process."""
WEIGHTS: Final = "weights"
"""Folder of a run directory while the run is under way: new weights for policy servers of other machines."""
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system answers that has no locks."""


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file whole: readers see the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        draft.chmod(0o644)
        move_into_place(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:  # any JSON tree
    """Replace a JSON file whole."""
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def move_into_place(draft: Path, place: Path) -> None:
    """Give a finished file or directory its name: all of it is on disk before, and its name when this returns.

    Raises: OSError: a directory has the name already.
    """
    for path in (draft, *draft.rglob("*")):
        _sync(path)
    draft.replace(place)
    _sync(place.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file; a pipe or a device, from which one may read for ever, is refused.

    Raises: OSError: there is none, or it is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        return file.read()


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file that grows by lines; one that a crash cut short is left out.

    Raises: OSError: it is no regular file.
    """
    return read_regular(path).split(b"\n")[:-1] if path.exists() else []


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold a folder, made where it is missing, as its only writer.

    The system lets go of it when the process ends, however it does. Where the file system has no locks, nothing is
    held, and a warning says so. A new folder in which nothing was written is removed at the end,
    with those above it that were made for it.

    Raises: RunError: another process holds it.
    """
    folders = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "r+", encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read(200).strip() or "another process"
            must, do = "have one writer at a time", "wait until it has ended, or stop it"
            raise RunError.of("run directory", must, holder, where=str(folder), do=do) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            do = "make sure that no other process writes there"
            got = error.strerror
            warnings.warn(sentence("file system", "support file locks", got, where=str(folder), do=do), stacklevel=3)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        try:
            yield
        finally:
            if folders and folder.exists() and os.listdir(folder) == [LOCK]:  # nothing came of it
                (folder / LOCK).unlink()
                with suppress(OSError):  # another run has begun beside it
                    for place in folders:
                        place.rmdir()
