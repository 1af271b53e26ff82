"""The running servers of a process, shared by its episodes: a server is brought to the state that an episode is in."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from envgym.authoring.warm_pool import WarmPool
from envgym.envs.tools._mcp.processes import McpServerState, ServerLost, broken
from envgym.errors import InvalidInput

if TYPE_CHECKING:  # the SDK takes a second to import
    from envgym.envs.tools._mcp.client import ServerConnection

MAX_RUNNING = 4
"""Servers of one name that run at the same time."""


def check_installed(where: str) -> None:
    """See that the SDK is there. Raises: InvalidInput: it is not."""
    do = "pip install 'envgym[mcp]'"
    InvalidInput.unless(find_spec("mcp") is not None, "mcp", "be installed", "no such package", where=where, do=do)


class McpServerPool(WarmPool["ServerConnection", McpServerState]):
    """Connections to servers of one name."""

    def __init__(self, name: str, size: int = MAX_RUNNING) -> None:
        super().__init__(size)
        self._name = name

    def start(self) -> "ServerConnection":
        """Start a server. Raises: ToolInfraFailure: it does not start."""
        from envgym.envs.tools._mcp.client import ServerConnection

        try:
            return ServerConnection(self._name)
        except ServerLost as loss:
            raise broken(self._name, "start", str(loss)) from None

    def choose(
        self, idle: Sequence["ServerConnection"], state: McpServerState, *, has_room: bool
    ) -> "ServerConnection | None":
        """Choose a server that is in the state, else the one that was used last."""
        return next((item for item in idle if item.state == state), idle[-1] if idle else None)

    @contextmanager
    def at(self, state: McpServerState) -> Iterator["ServerConnection"]:
        """Give a server in a state; one that ended while it was idle is replaced.

        Raises: ToolInfraFailure: it does not start, ends, or does not answer in time.
        """
        connection = self.take(state)
        try:
            try:
                connection.load(state)
            except ServerLost:
                connection.close()
                connection = self.start()
                connection.load(state)
            yield connection
        except ServerLost as loss:
            connection.close()
            raise broken(self._name, "answer", str(loss)) from None
        except Exception:  # a refusal leaves the server as it was
            if connection.state is None:
                connection.close()
            raise
        except BaseException:
            connection.close()
            raise
        finally:
            self.give_back(connection)


@cache
def shared_servers(name: str) -> McpServerPool:
    return McpServerPool(name)
