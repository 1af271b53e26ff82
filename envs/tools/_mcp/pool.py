"""The running servers of a process, shared by its episodes: a server is brought to the state that an episode is in."""

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

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


class McpServerPool:
    """Connections to servers of one name; used by all threads."""

    def __init__(self, name: str, size: int = MAX_RUNNING) -> None:
        """Keep up to `size` servers, each started when it is needed."""
        self._name, self._size = name, size
        self._idle: list[ServerConnection] = []
        self._num_out = 0
        self._changed = threading.Condition()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    @contextmanager
    def at(self, state: McpServerState) -> Iterator["ServerConnection"]:
        """Give a server in a state; one that ended while it was idle is replaced.

        Raises: ToolInfraFailure: it does not start, ends, or does not answer in time.
        """
        connection = self._take(state)
        try:
            try:
                connection.load(state)
            except ServerLost:
                connection.close()
                connection = self._start()
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
            self._give_back(connection)

    def _start(self) -> "ServerConnection":
        from envgym.envs.tools._mcp.client import ServerConnection

        return ServerConnection(self._name)

    def _take(self, state: McpServerState) -> "ServerConnection":
        with self._changed:
            self._changed.wait_for(lambda: self._num_out < self._size)
            self._num_out += 1
            if self._idle:
                best = next((item for item in self._idle if item.state == state), self._idle[-1])
                self._idle.remove(best)
                return best
        try:
            return self._start()
        except BaseException as error:
            with self._changed:
                self._num_out -= 1
                self._changed.notify()
            if isinstance(error, ServerLost):
                raise broken(self._name, "start", str(error)) from None
            raise

    def _give_back(self, connection: "ServerConnection") -> None:
        with self._changed:
            self._num_out -= 1
            if not connection.is_lost:
                self._idle.append(connection)
            self._changed.notify()

    def close(self) -> None:
        """End the servers that nobody uses."""
        with self._changed:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _forget(self) -> None:
        """Begin without servers in a forked child: they are the parent's."""
        self._idle, self._num_out, self._changed = [], 0, threading.Condition()


@cache
def shared_servers(name: str) -> McpServerPool:
    """Return this process' servers of a name."""
    return McpServerPool(name)
