"""The tools of any MCP servers, for the tasks of a data file: `tools/mcp_tasks-v0`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from envgym.authoring import RubricEnv
from envgym.connect.mcp_client import McpConnection, read_servers, shared_connection
from envgym.core.json_types import JsonObject
from envgym.core.messages import Message, Observation, Role
from envgym.core.tasks import Task
from envgym.env import ForkCapability, NoOracle
from envgym.envs.data._rows import ANSWER, TOOLS
from envgym.envs.data.file import DataFile
from envgym.envs.tools.mcp import describe_change
from envgym.errors import InvalidInput, sentence
from envgym.records import Reply
from envgym.tools import Tool, ToolSpec
from envgym.verifiers.settings import mark_answer

_WHERE = "tools/mcp_tasks-v0"
SEPARATOR = "__"
"""Between the name of a server and that of its tool."""


class McpTasks(DataFile):
    """Any number of tool calls; the first message without one is the answer, which a verifier scores."""

    blocking = True

    def __init__(
        self,
        *,
        mcp: Sequence[Mapping[str, Any]] | None = None,
        columns: Mapping[str, str] | None = None,
        max_turns: int | None = 20,
        **options: Any,  # rows and verifier as DataFile takes them, parties and render_mode as Env does
    ) -> None:
        """Choose servers, rows and verifier.

        Args:
            mcp: The servers, each with a name, and a command or a url; see the card.
            columns: As in `data/file-v0`, without `tools`.
            max_turns: Turns until the episode is cut.
            **options: As in `data/file-v0`.

        Raises: InvalidInput, SettingsError: a server that cannot be used, or as in `data/file-v0`.
        """
        self._servers = read_servers(mcp, where=_WHERE)
        if columns is not None and TOOLS in columns:
            do = "leave it out: the tools are those of the servers"
            raise InvalidInput.of("columns", f"name no {TOOLS}", columns[TOOLS], where=_WHERE, do=do)
        super().__init__(columns=columns, max_turns=max_turns, **options)
        is_shared = all(server.shared for server in self._servers)
        self.fork_capability = ForkCapability.STATE if is_shared else ForkCapability.NONE  # type: ignore[misc]  # of each
        self._connections: dict[str, McpConnection] = {}
        self._announced: tuple[ToolSpec, ...] = ()

    def begin(self, task: Task) -> str:
        """Connect to the servers; those that are not shared are started anew."""
        self.close()
        for server in self._servers:
            self._connections[server.name] = shared_connection(server) if server.shared else McpConnection(server)
        self._announced = self._specs()
        return super().begin(task)

    def toolset(self) -> Mapping[str, Tool]:
        """Return the tools that the servers offer now; none before an episode."""
        tools = {}
        for name, connection in getattr(self, "_connections", {}).items():
            for spec in connection.tools:
                tools[f"{name}{SEPARATOR}{spec.name}"] = _tool(name, spec)
        return MappingProxyType(tools)

    def _specs(self) -> tuple[ToolSpec, ...]:
        return tuple(item.spec for item in self.toolset().values())

    def run_tool(self, server: str, name: str, arguments: JsonObject) -> str:
        """Call a tool of a server. Raises: ToolError: it refuses. ToolInfraFailure: it has ended, or is late."""
        return self._connections[server].call(name, arguments)

    def after_tools(self, observation: Observation) -> Reply:
        """Show the results, and which tools have come or gone in this turn."""
        now = self._specs()
        if now == self._announced:
            return RubricEnv.after_tools(self, observation)
        change = Message(role=Role.USER, content=describe_change(self._announced, now))
        self._announced = now
        return Reply(observation=Observation.of([*observation.messages, change]))

    def oracle(self) -> str:
        """Return the answer of the row, without a call. Raises: NoOracle: the row has none."""
        answer = self.task.payload.get(ANSWER)
        if answer is None:
            got, do = "a row without one", "use rows with answers"
            raise NoOracle(sentence("right answer", "be known for an oracle", got, where=_WHERE, do=do))
        return mark_answer(self._verifier, str(answer[0] if isinstance(answer, list) and answer else answer))

    def close(self) -> None:
        """End the servers that this env started."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            if not connection.settings.shared:
                with suppress(OSError):
                    connection.close()


def _tool(server: str, spec: ToolSpec) -> Tool:
    named = ToolSpec(name=f"{server}{SEPARATOR}{spec.name}", description=spec.description, parameters=spec.parameters)
    return Tool(spec=named, call=partial(_call, server, spec.name))


def _call(server: str, name: str, env: object, arguments: JsonObject) -> str:
    assert isinstance(env, McpTasks), "the owner of its tools"
    return env.run_tool(server, name, arguments)
