"""What a task is made of: words, the goal, and calls that reach it; and the proof that the three agree."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from envgym.core.json_types import JsonValue, canonical
from envgym.envs.tools._mcp.servers.calendar import CalendarServer
from envgym.envs.tools._mcp.servers.files import FileServer
from envgym.envs.tools._mcp.servers.knowledge import KnowledgeServer
from envgym.envs.tools._mcp.servers.protocol import InvalidParams, Json, McpServer, Refusal, Tables, tools_of
from envgym.envs.tools._mcp.servers.shop import StoreServer
from envgym.envs.tools._office.plans import PlannedCall

SERVERS: Mapping[str, type[McpServer]] = MappingProxyType(
    {kind.name: kind for kind in (FileServer, CalendarServer, StoreServer, KnowledgeServer)}
)
ENDINGS: Mapping[str, str] = MappingProxyType(
    {"files": "stop_editing", "calendar": "close_calendar", "shop": "sign_out", "knowledge": "discard_draft"}
)
"""Server -> tool that ends what a session has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTaskPlan:
    """A task on a server. The goal is made from the records alone, so that the calls can be tested against it."""

    texts: tuple[str, ...]
    """The request, in several wordings."""
    goal: Tables
    calls: tuple[PlannedCall, ...]
    """How it is done: calls that look around, that begin and end sessions, and that change records."""


def content(server: str, tables: Mapping[str, JsonValue]) -> Counter[str]:
    """Count the records that tasks are about, by what they hold: ids of events and orders are no part of it."""
    records: Counter[str] = Counter()
    for table in SERVERS[server].graded:
        part = tables[table]
        assert isinstance(part, Mapping), "a table"
        named = table not in ("events", "orders")
        records.update(f"{table} {key if named else ''} {canonical(record)}" for key, record in part.items())
    return records


def simulated(server: str, tables: JsonValue, session: JsonValue = None) -> McpServer:
    return SERVERS[server](copy.deepcopy(tables), copy.deepcopy(session))  # type: ignore[arg-type]  # JSON of a server


def find_flaw(server: str, tables: Tables, plan: McpTaskPlan) -> str:
    """Return why a plan cannot be given to an agent, or nothing.

    The calls must reach the goal, and without any one of those that change something they must not.
    """
    goal = content(server, plan.goal)
    if goal == content(server, tables):
        return "there is nothing to do"
    reached, changing = _run(server, tables, plan.calls)
    if reached != goal:
        return "the calls do not reach the goal"
    fewer = ([*plan.calls[:at], *plan.calls[at + 1 :]] for at in changing)
    return "a call can be left out" if any(_run(server, tables, calls)[0] == goal for calls in fewer) else ""


def _run(server: str, tables: Tables, calls: Sequence[PlannedCall]) -> tuple[Counter[str] | None, list[int]]:
    """Return the server's content after calls, None if one is refused, and which of them can change something."""
    copy_ = simulated(server, tables)
    tools = tools_of(server)
    try:
        for item in calls:
            copy_.call(item.tool, dict(item.arguments))
    except (Refusal, InvalidParams):
        return None, []
    changing = [at for at, item in enumerate(calls) if not tools[item.tool].get("reads")]
    return content(server, copy_.tables), changing


def next_call(server: str, start: Json, plan: Sequence[PlannedCall], now: Json) -> PlannedCall | None:
    """Return the call that comes next on the way to the goal from any state, None where none helps or is needed."""
    steps = [content(server, start["tables"])]
    runner, tools = simulated(server, start["tables"], start["session"]), tools_of(server)
    for item in plan:
        runner.call(item.tool, dict(item.arguments))
        steps.append(content(server, runner.tables))
    here = content(server, now["tables"])
    if here == steps[-1] or here not in steps:
        return None
    done = max(place for place, records in enumerate(steps) if records == here)  # the next call changes a record
    begins = [
        at for at, item in enumerate(plan[:done]) if steps[at] == steps[at + 1] and not tools[item.tool].get("reads")
    ]
    for first in range(len(begins), -1, -1):
        calls = [plan[at] for at in (*begins[first:], done)]
        if _reaches(server, now, calls, steps[done + 1]):
            return calls[0]
    ending = ENDINGS[server]
    is_open = ending in {tool["name"] for tool in simulated(server, now["tables"], now["session"]).listed()}
    return PlannedCall(ending, {}) if is_open else None


def _reaches(server: str, now: Json, calls: Sequence[PlannedCall], target: Counter[str]) -> bool:
    runner = simulated(server, now["tables"], now["session"])
    try:
        for item in calls:
            runner.call(item.tool, dict(item.arguments))
    except (Refusal, InvalidParams):
        return False
    return content(server, runner.tables) == target
