"""The servers that a run uses at the moment: a file of its directory, which the run follows while it lasts.

    {"policy": ["http://10.0.0.2:8001"], "env": ["http://10.0.0.7:8700", "http://10.0.0.8:8700"]}

Whoever adds an address lets a server join, whoever removes one lets it leave: the launcher where it starts a server
again, a person by `envgym servers`. The file is there while the run is.
"""

import fcntl
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from envgym.core.json_types import visible
from envgym.errors import InvalidInput, RunError
from envgym.files import write_json
from envgym.process_log import is_open

_log = logging.getLogger(__name__)


class ServerKind(StrEnum):
    """What a server has."""

    POLICY = "policy"
    ENV = "env"


Servers = Mapping[ServerKind, tuple[str, ...]]
"""Addresses of each kind."""


def read_servers(file: Path) -> Servers:
    """Return the servers of a run. Raises: RunError: it is not running, or the file holds something else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        return {kind: tuple(server_url(url) for url in value[kind]) for kind in ServerKind}
    except FileNotFoundError as error:
        must, do = "be one that is running, with servers", "start it, or correct the directory"
        raise RunError.of("run", must, f"no {file.name}", where=str(file.parent), do=do) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        must, do = f"hold addresses under {' and '.join(ServerKind)}", "change it with envgym servers"
        raise RunError.of(
            "list of servers", must, f"{type(error).__name__}: {error}", where=str(file), do=do
        ) from error


def write_servers(file: Path, servers: Servers) -> None:
    """Write the whole list."""
    write_json(file, {kind: list(servers[kind]) for kind in ServerKind})


def change_servers(file: Path, kind: ServerKind, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Servers:
    """Add and remove addresses, and return the list; one that is there already, or is not, changes nothing.

    Raises: RunError: as `read_servers`. InvalidInput: an address is none.
    """
    added, removed = [server_url(url) for url in add], {server_url(url) for url in remove}
    with _sole_change(file.parent):
        servers = read_servers(file)
        kept = [url for url in dict.fromkeys([*servers[kind], *added]) if url not in removed]
        changed = {**servers, kind: tuple(kept)}
        if changed != servers:
            write_servers(file, changed)
    return changed


@contextmanager
def _sole_change(folder: Path) -> Iterator[None]:
    """Hold a folder, so that two changes follow each other. Raises: RunError: there is none."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        do = "correct the path"
        raise RunError.of("run directory", "exist", error.strerror, where=str(folder), do=do) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def server_url(url: str) -> str:
    """Return an address in the one form that is compared. Raises: InvalidInput: it is none."""
    text = url.rstrip("/")
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        is_address = False
    do = "write it as in http://127.0.0.1:8001"
    InvalidInput.unless(
        is_address and not parts.path, "server", "have an address with a port", url, where="list", do=do
    )
    return text


class WatchedServers:
    """The addresses of one kind, as the file has them from time to time."""

    def __init__(self, file: Path, kind: ServerKind) -> None:
        """Watch a file, which may not exist yet."""
        self._file, self._kind = file, kind
        self._seen: tuple[int, int, int] | None = None
        self._urls: tuple[str, ...] | None = None

    def changed(self) -> tuple[str, ...] | None:
        """Return the addresses where they are others than at the last call; None: they are the same.

        A file that cannot be read changes nothing; one sentence says so.
        """
        try:
            state = self._file.stat()
        except OSError:
            return None  # the run ends, or has not begun
        seen = (state.st_ino, state.st_mtime_ns, state.st_size)
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            urls = read_servers(self._file)[self._kind]
        except RunError as error:
            warn_user(str(error))
            return None
        is_same, self._urls = urls == self._urls, urls
        return None if is_same else urls


def warn_user(sentence: str) -> None:
    """Show a sentence beside the progress of the run, and log it: something failed, and the run goes on."""
    _log.warning("%s", visible(sentence))
    if is_open():  # else the module `logging` has written it to standard error
        print(f"warning: {visible(sentence)}", file=sys.stderr, flush=True)
