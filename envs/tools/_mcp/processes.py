"""MCP servers as processes in sandboxes, without a network, with limits."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envgym.core.json_types import JsonObject, JsonValue
from envgym.errors import ToolInfraFailure
from envgym.sandbox import MIB, Limits, PythonSession, RunEnding

ANSWER_S = 20.0
"""Seconds of wall time that a server may take for one message."""
_CPU_S = 10.0
_PACKAGE = "envgym.envs.tools._mcp.servers"
_LIMITS = Limits(cpu_s=_CPU_S, wall_s=ANSWER_S, memory=256 * MIB, processes=8, output=8 * MIB)


class ServerLost(Exception):
    """A server has ended, or was ended because it did not answer."""


@dataclass(frozen=True, slots=True)
class McpServerState:
    """All that a server holds, as it returned it."""

    text: str
    """JSON, in the one form that equal states share."""

    def read(self) -> JsonObject:
        value: JsonValue = json.loads(self.text)
        assert isinstance(value, dict), "written by a server"
        return value


class ServerProcess:
    """One running server; used by one thread at a time. Its files are its code: no task is among them."""

    def __init__(self, name: str) -> None:
        """Start it. Raises: ToolInfraFailure: the sandbox does not work, or the server does not start."""
        self.name = name
        self.is_lost = False
        self._session = PythonSession(_LIMITS)
        try:
            for path, content in _server_files():
                self._session.write_file(path, content)
            module = f"{_PACKAGE}.{name}"
            begun = self._session.run(f"{_relay()}\nrelay = Relay({module!r})")
            if begun.error is not None:
                raise broken(name, "start", begun.output[-200:])
        except BaseException:
            self.close()
            raise

    def exchange(self, line: str, number: int | str | None) -> list[str]:
        """Hand over a message; return what the server writes up to the response to request `number`.

        Raises: ServerLost: it has ended, or does not answer in time. ToolInfraFailure: the sandbox does not work.
        """
        done = self._session.run(f"print(relay.exchange({line!r}, {number!r}), end='')")
        if done.ending is not RunEnding.EXITED or done.error is not None:
            self.close()
            last = done.output.strip().splitlines()[-1:] or [str(done.error)]
            raise ServerLost(last[0] if done.ending is RunEnding.EXITED else f"stopped by its limit: {done.ending}")
        return done.output.splitlines()

    def close(self) -> None:
        self.is_lost = True
        self._session.close()


def broken(name: str, must: str, got: str) -> ToolInfraFailure:
    return ToolInfraFailure.of(f"MCP server {name}", f"be able to {must}", got, where="sandbox", do="try again")


@cache
def _relay() -> str:
    return Path(__file__).with_name("relay_guest.py").read_text(encoding="utf-8")


@cache
def _server_files() -> tuple[tuple[str, bytes], ...]:
    """Return the files that a server needs: its package, in empty ones."""
    folder = Path(__file__).with_name("servers")
    parents = _PACKAGE.split(".")[:-1]
    empty = [("/".join([*parents[: depth + 1], "__init__.py"]), b"") for depth in range(len(parents))]
    inside = [path for path in sorted(folder.iterdir()) if path.suffix in (".py", ".toml")]
    return (*empty, *((f"{_PACKAGE.replace('.', '/')}/{path.name}", path.read_bytes()) for path in inside))
