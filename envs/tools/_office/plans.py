"""What a task is made of: words, the golden state, and calls that reach it; and the proof that the three agree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from envgym.core.json_types import JsonObject, JsonValue
from envgym.envs.tools._office.apps import OfficeTools, office_tools
from envgym.envs.tools._office.state import OfficeState, find_changes
from envgym.errors import ToolError


class PlannedCall(NamedTuple):
    """A call of a tool."""

    tool: str
    arguments: JsonObject


def plan_call(tool: str, **arguments: JsonValue) -> PlannedCall:
    """Write a call down."""
    return PlannedCall(tool, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """A task in an office. The goal is made from the records alone, so that the calls can be tested against it."""

    texts: tuple[str, ...]
    """The request, in several wordings."""
    goal: OfficeState
    reads: tuple[PlannedCall, ...]
    """How one finds out what must be known."""
    writes: tuple[PlannedCall, ...]
    """What changes the office, in order; none can be left out."""


def apply_calls(office: OfficeState, calls: Sequence[PlannedCall]) -> OfficeState:
    """Return the office after calls. Raises: ToolError: one is refused."""
    apps, tools = OfficeTools(office), office_tools()
    for item in calls:
        tools[item.tool].call(apps, item.arguments)
    return apps.office


def distance(start: OfficeState, goal: OfficeState, office: OfficeState) -> int:
    """Return how many changes are missing or unwanted, of those that lead from `start` to `goal`."""
    expected, actual = find_changes(start, goal), find_changes(start, office)
    return ((expected - actual) + (actual - expected)).total()


def find_flaw(start: OfficeState, plan: TaskPlan) -> str:
    """Return why a plan cannot be given to an agent, or nothing.

    The calls must reach the goal; looking around must change nothing; and near misses must not be taken for the goal:
    nothing done, one call left out, the last call made on another record, one call too many.
    """
    try:
        if apply_calls(start, plan.reads) != start:
            return "a call that should only read changes something"
        if distance(start, plan.goal, apply_calls(start, plan.writes)):
            return "the calls do not reach the goal"
    except ToolError as refusal:
        return f"a call is refused: {refusal}"
    misses: list[Sequence[PlannedCall]] = [(), (*plan.writes, _ONE_TOO_MANY)]
    misses += [[*plan.writes[:place], *plan.writes[place + 1 :]] for place in range(len(plan.writes))]
    misses += [[*plan.writes[:-1], other] for item in plan.writes[-1:] for other in _elsewhere(start, item)]
    if any(_reaches(start, plan.goal, calls) for calls in misses):
        return "a near miss reaches the goal"
    return ""


def _reaches(start: OfficeState, goal: OfficeState, calls: Sequence[PlannedCall]) -> bool:
    try:
        return distance(start, goal, apply_calls(start, calls)) == 0
    except ToolError:
        return False


_ONE_TOO_MANY = plan_call("tickets_create", title="Something nobody asked for")
_KEYS = {"event_id": "events", "mail_id": "mails", "contact_id": "contacts", "ticket_id": "tickets", "path": "files"}


def _elsewhere(office: OfficeState, item: PlannedCall) -> list[PlannedCall]:
    """Return the same call on other records of its table, if it is on one."""
    return [
        replace_argument(item, name, key)
        for name, table in _KEYS.items()
        if item.arguments.get(name) in getattr(office, table)
        for key in getattr(office, table)
        if key != item.arguments[name]
    ][:3]


def replace_argument(item: PlannedCall, name: str, value: JsonValue) -> PlannedCall:
    """Return a call with another value of an argument."""
    return PlannedCall(item.tool, {**item.arguments, name: value})


def join_plans(first: TaskPlan, second: TaskPlan) -> TaskPlan:
    """Return the plan of two requests one after the other; the second was made in the office that the first leaves."""
    texts = tuple(
        f"Two things. First: {one}\n{link}: {other}"
        for one, other, link in zip(first.texts, second.texts, ("Second", "After that", "And then"), strict=True)
    )
    return replace(second, texts=texts, reads=first.reads + second.reads, writes=first.writes + second.writes)
