"""Tools of real MCP servers, graded by the state that the server holds at the end: `tools/mcp-v0`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from envgym.core.json_types import JsonObject, JsonValue, canonical
from envgym.core.messages import Action, Message, Observation, Role, ToolCall
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env, share_state
from envgym.envs.data_files import read_toml
from envgym.envs.families import LEVELS
from envgym.envs.tools._mcp.plans import SERVERS, content, next_call, simulated
from envgym.envs.tools._mcp.pool import check_installed, shared_servers
from envgym.envs.tools._mcp.processes import McpServerState
from envgym.envs.tools._mcp.tasks import WHERE, mcp_tasks
from envgym.envs.tools._office.plans import PlannedCall
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.tools import Tool, ToolSpec

HELD_OUT = ("shop", "knowledge")
"""Servers of the test split, unless others are named."""
_RULES = (
    "You are connected to a server with tools. Do exactly what you are asked and change nothing else. The tools that "
    "are offered may change while you work; you are told when they do. When everything is done, say so in a message "
    "without a tool call: it ends your work."
)


@dataclass(frozen=True, slots=True)
class McpState:
    """An episode so far; a running server is brought to it when it is needed."""

    server: McpServerState
    tools: tuple[ToolSpec, ...]
    """What the server offers now."""
    announced: tuple[ToolSpec, ...]
    """What the agent has been told that it offers."""
    calls: tuple[ToolCall, ...] = ()
    """Those that have reached the server."""


class McpTools(Env[McpState]):
    """Any number of tool calls; the first message without one says that the work is done, and is graded."""

    blocking = True

    def __init__(
        self,
        *,
        servers: str | Sequence[str] = tuple(SERVERS),
        levels: int | Sequence[int] = LEVELS,
        held_out: str | Sequence[str] = HELD_OUT,
        max_turns: int | None = 40,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose servers and tasks.

        Args:
            servers: Servers that tasks are set on: files, calendar, shop, knowledge: one or several.
            levels: 1 to 3: a change of something that is named, one after a lookup, several by a condition.
            held_out: Servers that make up the test split, and are not in the train split. None of them: the test split
                has other tasks on the same servers.
            max_turns: Turns until the episode is cut, which pays nothing.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range, no server is left to train on, or the SDK is not installed.
        """
        check_installed(WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.tasks = mcp_tasks(servers, levels, held_out)
        table, names = _chance(), (*self.tasks.families, *self.tasks.held_out)
        self.chance_score = max(table[name][level - 1] for name in names for level in self.tasks.levels)

    def begin(self, task: Task) -> str:
        """Let a server hold the records of the task, in a new session."""
        self._server = str(task.payload["server"])
        tables = _mapping(task.payload["tables"])
        session = simulated(self._server, tables).session
        start = McpServerState(canonical({"tables": tables, "session": session}))
        self._start, self._goal = start.read(), content(self._server, _mapping(task.payload["goal"]))
        self._calls = tuple(_planned(item) for item in _list(task.payload["calls"]))
        with shared_servers(self._server).at(start) as connection:
            self.system_prompt = f"{_RULES}\n\n{self._server}: {connection.instructions}"
            tools = connection.list_tools()
        self.state = McpState(start, tools, tools)
        return task.prompt

    def toolset(self) -> Mapping[str, Tool]:
        """Return the tools that the server offers now; none before an episode."""
        return {} if self._task is None else {spec.name: _tool(spec) for spec in self.state.tools}

    def run_tool(self, name: str, arguments: JsonObject) -> str:
        """Call a tool of the server. Raises: ToolError: it refuses. ToolInfraFailure: it has ended."""
        before = self.state
        with shared_servers(self._server).at(before.server) as connection:
            try:
                return connection.call(name, arguments)
            finally:
                if connection.state is not None:
                    tools = connection.list_tools() if connection.has_new_tools else before.tools
                    call = ToolCall(name=name, arguments=arguments)
                    self.state = replace(before, server=connection.state, tools=tools, calls=(*before.calls, call))

    def after_tools(self, observation: Observation) -> Reply:
        """Show the results, and which tools have come or gone in this turn."""
        tools, announced = self.state.tools, self.state.announced
        if tools == announced:
            return Reply(observation=observation)
        self.state = replace(self.state, announced=tools)
        change = Message(role=Role.USER, content=describe_change(announced, tools))
        return Reply(observation=Observation.of([*observation.messages, change]))

    def respond(self, action: Action) -> Reply:
        """Compare what the server holds with what was wanted; nothing that is said counts."""
        actual = content(self._server, _mapping(self.state.server.read()["tables"]))
        missing, unwanted = (self._goal - actual).total(), (actual - self._goal).total()
        is_solved = not missing and not unwanted
        parts = {"solved": float(is_solved), "missing": float(missing), "unwanted": float(unwanted)}
        text = "All as asked." if is_solved else f"Records missing: {missing}; not asked for: {unwanted}."
        return Reply(observation=text, reward=Scored(value=float(is_solved), components=parts), terminated=True)

    def oracle(self) -> str:
        """Follow the plan; once something else was called, make the calls that still lead to the goal."""
        done = tuple((call.name, canonical(call.arguments)) for call in self.state.calls)
        planned = tuple((item.tool, canonical(item.arguments)) for item in self._calls)
        if done == planned[: len(done)] and len(done) < len(planned):
            item: PlannedCall | None = self._calls[len(done)]
        else:
            now = self.state.server.read()
            item = next_call(self._server, dict(self._start), self._calls, dict(now))
        return "Everything is done." if item is None else tool_call_action(item.tool, **item.arguments)

    fork_state = share_state


def _tool(spec: ToolSpec) -> Tool:
    def call(owner: object, arguments: JsonObject) -> object:
        assert isinstance(owner, McpTools), "the env is its tools' owner"
        return owner.run_tool(spec.name, arguments)

    return Tool(spec=spec, call=call)


def describe_change(before: Sequence[ToolSpec], after: Sequence[ToolSpec]) -> str:
    """Tell which tools are offered no more, and describe the others that are offered now."""
    gone = [spec.name for spec in before if spec not in after]
    lines = [f"Offered no more: {', '.join(gone)}."] if gone else []
    new = [spec for spec in after if spec not in before]
    lines += ["Offered now:"] if new else []
    lines += [json.dumps({"name": s.name, "description": s.description, "parameters": s.parameters}) for s in new]
    return "\n".join(["The tools of the server have changed.", *lines])


@cache
def _chance() -> Mapping[str, Sequence[float]]:
    return read_toml("tools/data/mcp_chance.toml")


def _planned(item: JsonValue) -> PlannedCall:
    tool, arguments = _list(item)
    return PlannedCall(str(tool), _mapping(arguments))


def _list(value: JsonValue) -> Sequence[JsonValue]:
    assert isinstance(value, list | tuple), "written by draw_task"
    return value


def _mapping(value: JsonValue) -> JsonObject:
    assert isinstance(value, Mapping), "written by draw_task"
    return value
