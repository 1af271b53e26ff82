"""Servers that join and leave a run: the list in its directory, what follows it, and how a restart changes it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from envgym.errors import InvalidInput
from envgym.files import SERVERS
from envgym.plugins import Choice
from envgym.server_list import (
    ServerKind,
    WatchedServers,
    change_servers,
    read_servers,
    server_url,
    warn_user,
    write_servers,
)
from envgym.serving.client import RECONNECT_S
from envgym.serving.pool import pool_of
from envgym.trainer.placement import ENV_SERVER
from envgym.trainer.settings import TrainSettings

POLICY_SERVERS: Final = "policy_servers"
"""The backend that samples through policy servers."""


class StartedServers:
    """The addresses of the servers that a run has started, kept in the list as they die and are started again."""

    def __init__(self, file: Path) -> None:
        """Begin without a server."""
        self._file = file
        self.urls: dict[str, str] = {}
        """Role -> address; a server that a person has removed from the list is none of the run's any more."""
        self._down = set[str]()
        """Roles that have died and do not serve again yet; one may die several times on its way."""

    def note(self, role: str, announced: Mapping[str, object] | None) -> None:
        """Change the list: a server has died, or serves again at the address that it announced."""
        kind = ServerKind.ENV if role.startswith(ENV_SERVER) else ServerKind.POLICY
        try:
            if announced is not None:
                self._down.discard(role)
                if role in self.urls:
                    self.urls[role] = server_url(str(announced["url"]))
                    change_servers(self._file, kind, add=[self.urls[role]])
            elif role in self._down:
                return
            elif self.urls.get(role) in read_servers(self._file)[kind]:
                self._down.add(role)
                change_servers(self._file, kind, remove=[self.urls[role]])
            else:
                self.urls.pop(role, None)
        except (InvalidInput, OSError) as error:
            warn_user(f"{role}: {error}")


@contextmanager
def followed(settings: TrainSettings, *, started: Mapping[str, str] | None = None) -> Iterator[TrainSettings]:
    """Let servers join and leave a run during a block; yield its settings, whose policy follows the list.

    Args:
        settings: with the addresses of all servers.
        started: role -> address of those that the run has started, which are waited for as long as a start may take.
    """
    policy, env = _policy_servers(settings), _env_servers(settings, started or {})
    if not policy and not env:
        yield settings
        return
    file = settings.run.path / SERVERS
    write_servers(file, {ServerKind.POLICY: policy, ServerKind.ENV: env})
    start_s = settings.launch.start_timeout_s if started else None
    try:
        with ExitStack() as held:
            if env:
                watched = WatchedServers(file, ServerKind.ENV)
                held.enter_context(pool_of(env).following(watched, wait_s=start_s or RECONNECT_S))
            yield _with_list(settings, file, start_s) if policy else settings
    finally:
        file.unlink(missing_ok=True)


def has_servers(settings: TrainSettings) -> bool:
    """Return whether a run uses servers that its settings name."""
    return bool(_policy_servers(settings) or _env_servers(settings, {}))


def _policy_servers(settings: TrainSettings) -> tuple[str, ...]:
    backend = settings.engine.backend
    given = backend.settings.get("servers", ()) if backend.name == POLICY_SERVERS else ()
    return tuple(map(server_url, given))


def _env_servers(settings: TrainSettings, started: Mapping[str, str]) -> tuple[str, ...]:
    """Return the servers of the list: those that were started, or those of all envs where all have the same."""
    if of_run := tuple(server_url(url) for role, url in started.items() if role.startswith(ENV_SERVER)):
        return of_run
    given = {tuple(map(server_url, env.servers)) for env in settings.envs if env.servers}
    return given.pop() if len(given) == 1 else ()


def _with_list(settings: TrainSettings, file: Path, start_s: float | None) -> TrainSettings:
    backend = settings.engine.backend
    waits = {} if start_s is None else {"wait_s": start_s}
    given = {"servers_file": str(file.absolute()), **waits, **backend.settings}
    engine = settings.engine.model_copy(update={"backend": Choice.model_validate({"name": backend.name, **given})})
    return settings.model_copy(update={"engine": engine})
