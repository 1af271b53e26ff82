"""The servers that a run uses at the moment: a file of its directory, which the run follows while it lasts.

    {"policy": ["http://10.0.0.2:8001"], "env": ["http://10.0.0.7:8700", "http://10.0.0.8:8700"]}

Whoever adds an address lets a server join, whoever removes one lets it leave: the launcher where it starts a server
again, a person by `envgym servers`. The file is there while the run is. `WatchedServers` follows it for the pool of
environment servers and for the fleet of policy servers, which let servers join and leave in their own way.
"""

import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from envgym.core.json_types import visible
from envgym.errors import InvalidInput, RunError
from envgym.runs.files import write_json
from envgym.runtime.processes.log import is_open

_log = logging.getLogger(__name__)


FOLLOW_S = 0.25
"""Between two looks at the list."""
AGAIN_S = 2.0
"""Until a server that could not join is tried again, while its address is in the list."""


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
        urls = [url for url in dict.fromkeys([*servers[kind], *added]) if url not in removed]
        changed = {**servers, kind: tuple(urls)}
        if changed != servers:
            write_servers(file, changed)
    return changed


@contextmanager
def _sole_change(folder: Path) -> Iterator[None]:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise RunError.of("run directory", "exist", error.strerror, where=str(folder), do="correct the path") from error
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


class ServerChanges(NamedTuple):
    """What the list changes for those who follow it."""

    leaving: list[str]
    """Addresses of servers that are used, or about to be, and are not in the list any more."""
    joining: list[str]
    """Addresses in the list that are not used yet."""


class WatchedServers:
    """Follows the servers of one kind in the list: which leave, which are to join, and when one is tried again."""

    def __init__(self, file: Path, kind: ServerKind) -> None:
        self._file, self._kind = file, kind
        self._seen: tuple[int, int, int] | None = None
        self._urls: tuple[str, ...] | None = None
        self._failures: dict[str, tuple[float, str]] = {}
        """Address in the list -> when a server that could not join is tried again, and why it could not."""

    def changes(self, used: Collection[str]) -> ServerChanges:
        """Return which servers leave now and which are to join, given those that are used, or about to be."""
        self._read()
        if self._urls is None:
            return ServerChanges([], [])
        now = time.monotonic()
        self._failures = {url: failure for url, failure in self._failures.items() if url in self._urls}
        joining = [url for url in self._urls if url not in used and now >= self._failures.get(url, (now, ""))[0]]
        return ServerChanges([url for url in used if url not in self._urls], joining)

    def note_failure(self, url: str, error: Exception) -> None:
        """Let a server that could not join be tried again later; one sentence names each reason once."""
        _, reason = self._failures.get(url, (0.0, ""))
        self._failures[url] = (time.monotonic() + AGAIN_S, str(error))
        if reason != str(error):
            warn_user(f"{url} cannot join: {error}")

    def _read(self) -> None:
        """Read the file, if it has changed; one that cannot be read changes nothing, and one sentence reports that."""
        try:
            state = self._file.stat()
        except OSError:
            return  # the run ends, or has not begun
        seen = (state.st_ino, state.st_mtime_ns, state.st_size)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._urls = read_servers(self._file)[self._kind]
        except RunError as error:
            warn_user(str(error))


def warn_user(sentence: str) -> None:
    """Show a sentence beside the progress of the run, and log it: something failed, and the run goes on."""
    _log.warning("%s", visible(sentence))
    if is_open():  # else the module `logging` has written it to standard error
        print(f"warning: {visible(sentence)}", file=sys.stderr, flush=True)
