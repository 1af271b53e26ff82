"""Servers that join and leave a run: the list in its directory, what follows it, and how a restart changes it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from envgym.agents.policies.backends import server_limits
from envgym.agents.policies.serving.backend import PolicyEndpoints
from envgym.agents.settings import EngineSettings, EnvSettings
from envgym.errors import InvalidInput
from envgym.runtime.membership import (
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
from envgym.trainer.launch.placement import ENV_SERVER


class StartedServers:
    """The addresses of the servers that a run has started, kept in the list as they die and are started again."""

    def __init__(self, file: Path) -> None:
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
def following(
    file: Path, policy: PolicyEndpoints | None, env: tuple[str, ...], *, start_s: float | None = None
) -> Iterator[PolicyEndpoints | None]:
    """Let servers join and leave a run during a block; yield the policy servers, which follow the list.

    Args:
        file: the list, which exists during the block if there are servers.
        policy: the policy servers; None: the run has none.
        env: addresses of the environment servers of the list.
        start_s: seconds that a server which the run has started may take until it serves; None: it has started none.
    """
    if policy is None and not env:
        yield None
        return
    write_servers(file, {ServerKind.POLICY: () if policy is None else policy.urls, ServerKind.ENV: env})
    try:
        with ExitStack() as stack:
            if env:
                watched = WatchedServers(file, ServerKind.ENV)
                stack.enter_context(pool_of(env).following(watched, wait_s=start_s or RECONNECT_S))
            yield None if policy is None else replace(policy, list_file=file.absolute(), start_s=start_s)
    finally:
        file.unlink(missing_ok=True)


def has_servers(engine: EngineSettings, envs: Sequence[EnvSettings]) -> bool:
    """Whether settings name servers."""
    return named_policy_servers(engine) is not None or bool(named_env_servers(envs))


def named_policy_servers(engine: EngineSettings) -> PolicyEndpoints | None:
    """The policy servers that the engine section names; None: it names none."""
    endpoints = server_limits(engine).endpoints()
    return replace(endpoints, urls=tuple(map(server_url, endpoints.urls))) if endpoints.urls else None


def named_env_servers(envs: Sequence[EnvSettings]) -> tuple[str, ...]:
    """The environment servers that all envs with servers share; empty: there are none, or different ones."""
    addresses = {tuple(map(server_url, env.servers)) for env in envs if env.servers}
    return addresses.pop() if len(addresses) == 1 else ()
