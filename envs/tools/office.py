"""Work in an office of five apps, graded by what has changed at the end: `tools/office-v0`."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft
from envgym.authoring.sampler import Unsuitable
from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env
from envgym.envs.tools._office.apps import OfficeTools, office_tools
from envgym.envs.tools._office.plans import PlannedCall, TaskPlan, apply_calls, find_flaw, join_plans
from envgym.envs.tools._office.sampler import OfficeSampler, spoken_day
from envgym.envs.tools._office.state import Change, OfficeState, find_changes, from_json, to_json
from envgym.envs.tools._office.task_kinds import TASK_KINDS, TaskKind
from envgym.errors import InvalidInput, ToolError
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.tools import Tool

LEVELS = range(1, 6)
PART_SHARE = 0.5
"""What changes are worth, with `partial_credit`, where not exactly the wanted ones are made."""
MAX_DRAWS = 2_000
_WHERE = "tools/office-v0"
_JOINED_LEVELS = (2, 3, 4)
"""Levels of the two requests that make a task of level 5."""


class OfficeWork(Env[OfficeTools]):
    """Any number of tool calls; the first message without one says that the work is done, and is graded."""

    system_prompt = (
        "You work for the person named below, with the tools of an office: calendar, mail, files, contacts and "
        "tickets. Do exactly what you are asked and change nothing else. People are named; look their e-mail addresses "
        "up. When everything is done, say so in a message without a tool call: it ends your work."
    )

    def __init__(
        self,
        *,
        level: int | None = None,
        partial_credit: bool = False,
        max_turns: int | None = 40,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the tasks.

        Args:
            level: 1 to 5: one change, lookups across apps, several changes, rules with exceptions, two requests in one.
                None: all of them.
            partial_credit: Pay for wanted changes, less unwanted ones, also where they are not all.
            max_turns: Turns until the episode is cut, which pays nothing.
            **options: As in `Env`.

        Raises: InvalidInput: there is no such level.
        """
        if level is not None and (type(level) is not int or level not in LEVELS):
            do = "pass e.g. level=2"
            raise InvalidInput.of("level", "be a whole number from 1 to 5 or None", level, where=_WHERE, do=do)
        super().__init__(max_turns=max_turns, **options)
        self.level, self.partial_credit = level, partial_credit
        self.tasks = GeneratedTasks(self._draw, name="tools/office")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        level = self.level if self.level is not None else int(rng.integers(LEVELS.start, LEVELS.stop))
        task_kinds = TASK_KINDS[
            level if level in TASK_KINDS else _JOINED_LEVELS[int(rng.integers(len(_JOINED_LEVELS)))]
        ]
        task_kind = task_kinds[int(rng.integers(len(task_kinds)))]
        for _ in range(MAX_DRAWS):
            try:
                return _draft(rng, level, task_kind)
            except Unsuitable:
                continue
        raise InvalidInput.of("level", "leave tasks to draw", level, where=_WHERE, do="choose another level")

    def begin(self, task: Task) -> str:
        self._start = from_json(_mapping(task.payload["office"]))
        self._wanted = Counter(_change(item) for item in _list(task.payload["goal"]))
        self._reads, self._writes = (_calls(task.payload[name]) for name in ("reads", "writes"))
        self.state = OfficeTools(self._start)
        return task.prompt

    def toolset(self) -> Mapping[str, Tool]:
        return office_tools()

    def tool_owner(self) -> object:
        return self.state

    def respond(self, action: Action) -> Reply:
        """Compare what has changed with what was wanted; nothing that is said counts."""
        changes = find_changes(self._start, self.state.office)
        missing, unwanted = (self._wanted - changes).total(), (changes - self._wanted).total()
        done = 1 - missing / self._wanted.total()
        is_solved = not missing and not unwanted
        part = PART_SHARE * max(0.0, done - unwanted / self._wanted.total()) if self.partial_credit else 0.0
        reward = Scored(
            value=1.0 if is_solved else part,
            components={"solved": float(is_solved), "done": done, "unwanted": float(unwanted)},
        )
        text = "All as asked." if is_solved else f"Changes missing: {missing}; not asked for: {unwanted}."
        return Reply(observation=text, reward=reward, terminated=True)

    def oracle(self) -> str:
        """Look up what must be known, then make the changes that are still missing."""
        if self._turn < len(self._reads) and self.state.office == self._start:
            item: PlannedCall | None = self._reads[self._turn]
        else:
            item = self._next_write()
        return "Everything is done." if item is None else tool_call_action(item.tool, **item.arguments)

    def _next_write(self) -> PlannedCall | None:
        now, office = self.state.office, self._start
        for item in self._writes:
            if not find_changes(office, now):
                return item
            office = apply_calls(office, [item])
        return next((item for item in self._writes if self._helps(item)), None)

    def _helps(self, item: PlannedCall) -> bool:
        changes = find_changes(self._start, self.state.office)
        try:
            then = find_changes(self._start, apply_calls(self.state.office, [item]))
        except ToolError:
            return False
        return (self._wanted - then).total() < (self._wanted - changes).total()

    def fork_state(self) -> OfficeTools:
        """Share the office, which is immutable."""
        return OfficeTools(self.state.office)


# ---- drawing ------------------------------------------------------------------------------------------------------


def _draft(rng: np.random.Generator, level: int, task_kind: TaskKind) -> TaskDraft:
    sampler = OfficeSampler(rng)
    plan, kinds, start = task_kind(sampler), [task_kind.__name__], sampler.office
    if level not in TASK_KINDS:
        sampler.is_closed, sampler.office = True, plan.goal
        other, second = _second(sampler, task_kind)
        plan, kinds = join_plans(plan, second), [*kinds, other.__name__]
    if find_flaw(start, plan):
        raise Unsuitable
    return _task_draft(start, plan, level, kinds, int(rng.integers(len(plan.texts))))


def _second(sampler: OfficeSampler, first: TaskKind) -> tuple[TaskKind, TaskPlan]:
    """Return a second request, of another kind, that adds no record. Raises: Unsuitable: none is possible."""
    task_kinds = [task_kind for level in _JOINED_LEVELS for task_kind in TASK_KINDS[level] if task_kind is not first]
    for task_kind in sampler.some(task_kinds, len(task_kinds)):
        try:
            return task_kind, task_kind(sampler)
        except Unsuitable:
            continue
    raise Unsuitable


def _task_draft(start: OfficeState, plan: TaskPlan, level: int, kinds: list[str], wording: int) -> TaskDraft:
    goal = sorted((_plain(item) for item in find_changes(start, plan.goal).elements()), key=repr)
    return TaskDraft(
        prompt=f"{_introduction(start)}\n\n{plan.texts[wording]}",
        payload={
            "office": to_json(start),
            "goal": goal,
            "reads": [[item.tool, item.arguments] for item in plan.reads],
            "writes": [[item.tool, item.arguments] for item in plan.writes],
        },
        metadata={"level": level, "kinds": [*kinds], "wording": wording, "changes": len(goal)},
    )


def _introduction(office: OfficeState) -> str:
    day, who = f"{spoken_day(office.today)} {office.today[:4]}", office.owner
    return f"It is {day}, {office.now[11:]}. You work for {who.name} ({who.email}), {who.title} in {who.team}."


# ---- between records and JSON -------------------------------------------------------------------------------------


def _plain(change: object) -> JsonValue:
    return [_plain(part) for part in change] if isinstance(change, tuple) else change  # type: ignore[return-value]  # texts and numbers


def _change(item: JsonValue) -> Change:
    return tuple(_change(part) if isinstance(part, list) else part for part in _list(item))


def _calls(items: JsonValue) -> tuple[PlannedCall, ...]:
    return tuple(PlannedCall(str(_list(item)[0]), _mapping(_list(item)[1])) for item in _list(items))


def _list(value: JsonValue) -> list[JsonValue]:
    assert isinstance(value, list), "written by _task_draft"
    return value


def _mapping(value: JsonValue) -> JsonObject:
    assert isinstance(value, Mapping), "written by _task_draft"
    return value
