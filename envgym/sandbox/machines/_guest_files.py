"""Files into a machine and out of it, for its guest: no link is followed, whatever programs make of the paths.

Standard library only. Every directory is opened by its parent's descriptor, so that a path cannot change meanwhile.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from envgym.sandbox.machines._guest_frames import CHUNK
from envgym.sandbox.machines._guest_processes import UserIds

MAX_FILES = 20_000
"""Files that one `get` may find, directories included."""
MAX_NAMES = 4 << 20
"""Bytes of the paths of the files that one `get` returns."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_MAX_DEPTH = 200

Give = Callable[[str, bytes], None]
"""Called with each part of a file."""


class TooMuch(Exception):
    """A path holds more than is allowed; the message names it."""


@dataclass(frozen=True)
class Making:
    """How directories that are missing are made: those from `directory` on for `owner`, those above it for root."""

    directory: str
    owner: UserIds
    mode: int
    """Of those for `owner`."""


@contextmanager
def opened(path: str, *, making: Making | None = None) -> Iterator[int]:
    """Open a directory by its absolute path; links are not followed. Raises: OSError: a link, no folder."""
    descriptor = os.open("/", _DIRECTORY)
    num_above = len(_parts(making.directory)) - 1 if making else 0
    try:
        for number, name in enumerate(_parts(path)):
            is_made = making is not None and _made(name, descriptor)
            inner = os.open(name, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
            if is_made and making is not None:
                is_owned = number >= num_above
                os.fchmod(descriptor, making.mode if is_owned else 0o755)
                if is_owned:
                    os.fchown(descriptor, making.owner.uid, making.owner.gid)
        yield descriptor
    finally:
        os.close(descriptor)


def directory_mode(modes: Sequence[int]) -> int:
    """Return the permissions of directories of files: readable for whom a file is; 0755 without files."""
    mode = 0o644 if not modes else 0
    for its in modes:
        mode |= its
    return mode | (mode & 0o444) >> 2


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _made(name: str, parent: int) -> bool:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def remove(path: str) -> None:
    """Remove what is at an absolute path, a link itself and not what it names. Raises: OSError."""
    parent, _, name = path.rstrip("/").rpartition("/")
    with suppress(FileNotFoundError), opened(parent) as descriptor:
        _remove(name, descriptor)


def _remove(name: str, parent: int) -> None:
    if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    stack = [(name, os.open(name, _DIRECTORY, dir_fd=parent), parent)]
    try:
        while stack:
            name, descriptor, above = stack[-1]
            inner = None
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        inner = entry.name
                        break
                    os.unlink(entry.name, dir_fd=descriptor)
            if inner is not None:
                stack.append((inner, os.open(inner, _DIRECTORY, dir_fd=descriptor), descriptor))
                continue
            os.rmdir(name, dir_fd=above)
            os.close(descriptor)
            stack.pop()
    finally:
        for _, descriptor, _ in stack:
            os.close(descriptor)


def write(making: Making, path: str, mode: int, parts: Iterator[bytes]) -> None:
    """Write a file at `path` below a directory; what is there is replaced. Raises: OSError."""
    folder, _, name = f"{making.directory}/{path}".rpartition("/")
    with opened(folder, making=making) as parent:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        descriptor = os.open(name, _NEW, 0o600, dir_fd=parent)
        try:
            for part in parts:
                view = memoryview(part)
                while view:
                    view = view[os.write(descriptor, view) :]
            os.fchown(descriptor, making.owner.uid, making.owner.gid)
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def read(path: str, max_bytes: int, give: Give) -> None:
    """Give the regular files at an absolute path, none if nothing is there. Raises: TooMuch."""
    parent, _, name = path.rstrip("/").rpartition("/")
    reading = _Reading(max_bytes, give)
    with suppress(OSError), opened(parent) as descriptor:
        if not name:
            reading.folder(descriptor, "")
        elif stat.S_ISDIR(os.lstat(name, dir_fd=descriptor).st_mode):
            inner = os.open(name, _DIRECTORY, dir_fd=descriptor)
            try:
                reading.folder(inner, "")
            finally:
                os.close(inner)
        else:
            reading.file(descriptor, name, name)


class _Reading:
    def __init__(self, max_bytes: int, give: Give) -> None:
        self._bytes_left, self._files_left, self._give = max_bytes, MAX_FILES, give
        self._max_bytes, self._names_left = max_bytes, MAX_NAMES

    def folder(self, descriptor: int, prefix: str) -> None:
        if prefix.count("/") > _MAX_DEPTH:
            raise TooMuch(f"folders more than {_MAX_DEPTH} deep")
        with os.scandir(descriptor) as entries:
            names: list[tuple[str, bool]] = []
            for entry in entries:
                self._files_left -= 1
                if self._files_left < 0:
                    raise TooMuch(f"more than {MAX_FILES} files")
                names.append((entry.name, entry.is_dir(follow_symlinks=False)))
        for name, is_folder in sorted(names):
            if not is_folder:
                self.file(descriptor, name, prefix + name)
                continue
            with suppress(OSError):
                inner = os.open(name, _DIRECTORY, dir_fd=descriptor)
                try:
                    self.folder(inner, f"{prefix}{name}/")
                finally:
                    os.close(inner)

    def file(self, parent: int, name: str, path: str) -> None:
        try:
            is_file = stat.S_ISREG(os.lstat(name, dir_fd=parent).st_mode)  # opening a device may have an effect
            descriptor = os.open(name, _OLD, dir_fd=parent) if is_file else -1
        except OSError:
            return
        if descriptor < 0:
            return
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return
            self._names_left -= len(os.fsencode(path))
            if self._names_left < 0:
                raise TooMuch(f"names of more than {MAX_NAMES} bytes")
            self._give(path, b"")
            while part := os.read(descriptor, CHUNK):
                self._bytes_left -= len(part)
                if self._bytes_left < 0:
                    raise TooMuch(f"more than {self._max_bytes} bytes")
                self._give(path, part)
        finally:
            os.close(descriptor)
