"""`tools/office-v0`: what changed decides; every kind of task is proved when it is drawn; wrong calls are answered."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.authoring.sampler import Unsuitable
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.json_types import JsonValue
from envgym.core.messages import Role
from envgym.core.tasks import Split, Task, distinct_tasks
from envgym.core.turns import Ending, Scored
from envgym.envs.tools._office import plans
from envgym.envs.tools._office.apps import office_tools
from envgym.envs.tools._office.calendar import free_starts
from envgym.envs.tools._office.plans import PlannedCall, TaskPlan, apply_calls, find_flaw, join_plans, plan_call
from envgym.envs.tools._office.sampler import OfficeSampler
from envgym.envs.tools._office.state import (
    Contact,
    Event,
    FileFolder,
    Mail,
    OfficeState,
    SupportTicket,
    TextFile,
    find_changes,
    from_json,
    to_json,
)
from envgym.envs.tools._office.task_kinds import TASK_KINDS, TaskKind
from envgym.envs.tools.office import OfficeWork
from envgym.parsing import tool_call_action
from tests.envs.episodes import conformance

ME = Contact("C1000", "Ida Falk", "ida@a.example", "1", "Sales", "Account Manager", "ben@a.example")
BEN = Contact("C1001", "Ben Ruiz", "ben@a.example", "2", "Sales", "Head of Sales", "")
ANA = Contact("C1002", "Ana Sato", "ana@a.example", "3", "Sales", "Account Manager", "ben@a.example")
CALL = Event("E1000", "Partner call", "2026-03-03 10:00", 45, "Room Oak", ("ana@a.example",))
HELLO = Mail("M1000", "inbox", "ana@a.example", ("ida@a.example",), "Hello", "Call me.", "2026-03-01 12:00")
NOTE = TextFile("/notes/a.txt", "One.", "2026-03-01")
JAM = SupportTicket("T1000", "Printer jams", "It jams.", "open", "low", "ana@a.example", "")
WORLD = OfficeState(
    "2026-03-02 08:50",
    ME,
    {item.id: item for item in (BEN, ANA)},
    {CALL.id: CALL},
    {HELLO.id: HELLO},
    {NOTE.path: NOTE},
    {"/notes": FileFolder("/notes")},
    {JAM.id: JAM},
)
RAISE, MOVE = (
    plan_call("tickets_set_priority", ticket_id="T1000", priority="high"),
    plan_call("calendar_cancel", event_id="E1000"),
)


TestOffice = conformance("tools/office-v0", num_tasks=2, partial_credit=True)


def task_of(*writes: PlannedCall) -> Task:
    """Return the task whose golden state these calls reach."""
    goal = [list(change) for change in find_changes(WORLD, apply_calls(WORLD, writes)).elements()]
    calls: JsonValue = [[item.tool, item.arguments] for item in writes]
    payload: dict[str, JsonValue] = {"office": to_json(WORLD), "goal": goal, "reads": [], "writes": calls}  # type: ignore[dict-item]  # texts
    return Task(id="t", prompt="", payload=payload, split=Split.TRAIN)


def paid(env: OfficeWork, task: Task, *calls: PlannedCall) -> Scored:
    """Make calls, say that all is done, and return the reward."""
    said = [*(tool_call_action(item.tool, **item.arguments) for item in calls), "Done."]
    episode = play(env, lambda turn, _: said[turn], seed=0, task=task)
    reward = episode.turns[-1].reward
    assert isinstance(reward, Scored)
    return reward


@pytest.mark.parametrize(
    "calls, value, done, unwanted",
    [
        # Two changes are wanted; with partial credit a result that is not exactly right earns half of the share made,
        # less the unwanted changes: 0.5 * max(0, made / 2 - unwanted / 2).
        ([RAISE, MOVE], 1.0, 1.0, 0),
        ([MOVE, RAISE], 1.0, 1.0, 0),
        ([RAISE], 0.25, 0.5, 0),
        ([RAISE, MOVE, plan_call("files_delete", path="/notes/a.txt")], 0.25, 1.0, 1),
        ([RAISE, plan_call("files_delete", path="/notes/a.txt")], 0.0, 0.5, 1),
        ([plan_call("tickets_set_priority", ticket_id="T1000", priority="urgent"), MOVE], 0.0, 0.5, 1),
        ([], 0.0, 0.0, 0),
    ],
)
def test_reward_counts_missing_and_unwanted_changes(
    calls: list[PlannedCall], value: float, done: float, unwanted: int
) -> None:
    task = task_of(RAISE, MOVE)
    solved = float(value == 1.0)
    components = {"solved": solved, "done": done, "unwanted": unwanted}
    assert paid(OfficeWork(partial_credit=True), task, *calls) == Scored(value=value, components=components)
    assert paid(OfficeWork(), task, *calls) == Scored(value=solved, components=components)


def test_an_unwanted_change_that_is_taken_back_does_not_count() -> None:
    back = plan_call("tickets_set_priority", ticket_id="T1000", priority="low")
    assert paid(OfficeWork(), task_of(MOVE), RAISE, MOVE, back).value == 1.0


def test_running_out_of_turns_pays_nothing() -> None:
    env = OfficeWork(max_turns=1, partial_credit=True)
    episode = play(env, oracle_of(env), seed=0, task=task_of(RAISE))
    assert (episode.reward, episode.ending) == (0.0, Ending.TRUNCATED_TURNS)


@pytest.mark.parametrize(
    "said, read, is_same",
    [
        ("Thank you.", "thank  YOU", True),
        ("1,234", "1234", True),
        ("1,2", "12", False),
        ("Thank you.", "Thank you, Ana.", False),
    ],
)
def test_texts_count_as_equal_up_to_case_spaces_full_stop_and_thousands(said: str, read: str, is_same: bool) -> None:
    first, second = (apply_calls(WORLD, [plan_call("mail_reply", mail_id="M1000", body=text)]) for text in (said, read))
    assert (find_changes(WORLD, first) == find_changes(WORLD, second)) is is_same


@pytest.mark.parametrize(
    "item, told",
    [
        (
            plan_call("calendar_cancel", event_id="E1001"),
            "There is no event 'E1001'. Did you mean E1000? calendar_list shows",
        ),
        (plan_call("calendar_cancel", event="E1000"), "argument 'event_id' is missing; there is no argument 'event'"),
        (
            plan_call("calendar_create", title="X", start="2026-03-03 25:00", minutes=30),
            "start must be written like 2026-03-05",
        ),
        (
            plan_call("calendar_create", title="X", start="2026-03-03 10:00", minutes="long"),
            "'minutes': input should be",
        ),
        (plan_call("calendar_invite", event_id="E1000", email="Ana"), "'Ana' is no e-mail address; contacts_search"),
        (plan_call("calendar_invite", event_id="E1000", email="ana@a.example"), "ana@a.example attends E1000 already."),
        (plan_call("calendar_invite", event_id="E1000", email="eve@b.example"), "eve@b.example is nobody's address"),
        (plan_call("calendar_uninvite", event_id="E1000", email="ben@a.example"), "its attendees are ana@a.example."),
        (
            plan_call("mail_move", mail_id="M1000", folder="sent"),
            "folder must be one of inbox, archive, projects, trash",
        ),
        (plan_call("mail_send", to=[], subject="X", body="Y"), "to must hold at least one address."),
        (plan_call("mail_send", to=["ben@a.example"], subject="X", body="Y", files=["/b"]), "There is no file '/b'."),
        (
            plan_call("files_move", path="/notes/a.txt", new_path="/old/a.txt"),
            "There is no folder '/old'; files_create_folder",
        ),
        (plan_call("files_create", path="/notes/../x", content=""), "path must be written like /reports/costs.csv"),
        (plan_call("files_create", path="/notes/a.txt", content=""), "/notes/a.txt is there already."),
        (plan_call("contacts_add", name="B", email="ben@a.example"), "ben@a.example is in the contacts already"),
        (plan_call("tickets_set_status", ticket_id="T1000", status="closed"), "only a resolved ticket can be closed"),
        (plan_call("tickets_set_status", ticket_id="T1000", status="done"), "status must be one of open, in_progress"),
        (plan_call("tickets_close", ticket_id="T1000"), "There is no tool 'tickets_close'. Did you mean tickets_"),
    ],
)
def test_what_cannot_be_done_is_told_and_changes_nothing(item: PlannedCall, told: str) -> None:
    env = OfficeWork()
    env.reset(options={"task": task_of(RAISE)})
    result = env.step(tool_call_action(item.tool, **item.arguments))
    record = result.info["envgym"]
    assert told in result.observation
    assert (record.tool_errors, record.ending, env.state.office) == (1, None, WORLD)
    assert record.observation.messages[0].role is Role.TOOL


def test_closed_tickets_change_only_after_they_are_opened_again() -> None:
    resolve, close, reopen = (
        plan_call("tickets_set_status", ticket_id="T1000", status=status) for status in ("resolved", "closed", "open")
    )
    assert paid(OfficeWork(), task_of(RAISE), resolve, close, RAISE, reopen).components["done"] == 0.0
    assert paid(OfficeWork(), task_of(RAISE), resolve, close, reopen, RAISE).value == 1.0


def test_free_starts_leave_out_what_overlaps() -> None:
    # Taken from 10:00 to 10:45: an hour can begin at 9:00, not from 9:30 to 10:30, again from 11:00 to 16:00.
    starts = [start[11:] for start in free_starts(WORLD, "2026-03-03", 60)]
    assert starts == ["09:00", *(f"{hour}:{half}" for hour in range(11, 16) for half in ("00", "30")), "16:00"]


@pytest.mark.parametrize("task_kind", [task_kind for level in TASK_KINDS.values() for task_kind in level])
def test_every_kind_of_task_is_proved_and_worded_in_three_ways(task_kind: TaskKind) -> None:
    for seed in range(60):
        sampler = OfficeSampler(np.random.default_rng(seed))
        try:
            plan = task_kind(sampler)
        except Unsuitable:
            continue
        assert find_flaw(sampler.office, plan) == ""
        assert len(set(plan.texts)) == 3
        assert not any("{" in text or "  " in text for text in plan.texts)
        break
    else:
        pytest.fail("no office suits it")


@pytest.mark.parametrize(
    "goal, reads, writes, told",
    [
        (apply_calls(WORLD, [RAISE]), (MOVE,), (RAISE,), "a call that should only read changes something"),
        (apply_calls(WORLD, [RAISE]), (), (MOVE,), "the calls do not reach the goal"),
        (apply_calls(WORLD, [RAISE]), (), (RAISE, RAISE), "a near miss reaches the goal"),
        (WORLD, (), (), "a near miss reaches the goal"),
        (WORLD, (), (plan_call("calendar_cancel", event_id="E1"),), "a call is refused: There is no event 'E1'"),
    ],
)
def test_flawed_plans_are_found(
    goal: OfficeState, reads: tuple[PlannedCall, ...], writes: tuple[PlannedCall, ...], told: str
) -> None:
    assert find_flaw(WORLD, TaskPlan(texts=(), goal=goal, reads=reads, writes=writes)).startswith(told)


def test_joined_plans_make_both_changes() -> None:
    middle = apply_calls(WORLD, [RAISE])
    first = TaskPlan(texts=("A.", "B.", "C."), goal=middle, reads=(), writes=(RAISE,))
    second = TaskPlan(texts=("D.", "E.", "F."), goal=apply_calls(middle, [MOVE]), reads=(), writes=(MOVE,))
    both = join_plans(first, second)
    assert (both.writes, find_flaw(WORLD, both)) == ((RAISE, MOVE), "")
    assert both.texts[0] == "Two things. First: A.\nSecond: D."


def test_oracle_mends_what_others_left_undone() -> None:
    env = OfficeWork()
    env.reset(options={"task": task_of(RAISE, MOVE)})
    env.step(tool_call_action("calendar_list", first_day="2026-03-02", last_day="2026-03-06"))
    env.step(tool_call_action("calendar_cancel", event_id="E1000"))
    env.step(env.oracle())
    assert env.oracle() == "Everything is done."
    assert env.step(env.oracle()).reward == 1.0


def test_tools_see_the_office_and_nothing_of_the_goal() -> None:
    env = OfficeWork()
    task = env.tasks.task(Split.TEST, 0)
    env.reset(options={"task": task})
    assert vars(env.state).keys() == {"office"}
    assert to_json(env.state.office) == task.payload["office"]
    assert len(office_tools()) == 41


def test_tasks_differ_and_reach_every_level() -> None:
    tasks = [*distinct_tasks(OfficeWork().tasks, Split.TRAIN, 40)]
    assert Counter(len(task.metadata["kinds"]) == 2 for task in tasks if task.metadata["level"] == 5)[False] == 0  # type: ignore[arg-type]  # a list
    assert {task.metadata["level"] for task in tasks} == {1, 2, 3, 4, 5}
    assert {task.metadata["wording"] for task in tasks} == {0, 1, 2}


def test_fork_goes_its_own_way() -> None:
    env = OfficeWork()
    env.reset(options={"task": task_of(RAISE)})
    twin = env.fork()
    twin.step(tool_call_action(MOVE.tool, **MOVE.arguments))
    env.step(tool_call_action(RAISE.tool, **RAISE.arguments))
    assert (env.step("Done.").reward, twin.step("Done.").reward) == (1.0, 0.0)


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_offices_come_back_from_json_and_hold_no_overlaps(seed: int) -> None:
    try:
        office = OfficeSampler(np.random.default_rng(seed)).office
    except Unsuitable:
        return
    assert from_json(to_json(office)) == office
    assert find_changes(office, office) == Counter()
    for event in office.events.values():
        assert event.start in free_starts(office.drop(event), event.start[:10], event.minutes)


@settings(max_examples=20)
@given(st.permutations(range(4)))
def test_independent_changes_count_the_same_in_any_order(order: list[int]) -> None:
    calls = [
        RAISE,
        plan_call("tickets_create", title="A"),
        plan_call("tickets_create", title="B"),
        plan_call("mail_send", to=["ben@a.example", "ana@a.example"], subject="X", body="Y"),
    ]
    assert find_changes(WORLD, apply_calls(WORLD, [calls[place] for place in order])) == find_changes(
        WORLD, apply_calls(WORLD, calls)
    )


@settings(max_examples=20)
@given(st.sampled_from([JAM, CALL, HELLO, NOTE, ANA]))
def test_a_deleted_record_is_one_change(record: SupportTicket | Event | Mail | TextFile | Contact) -> None:
    assert find_changes(WORLD, WORLD.drop(record)).total() == 1
    assert find_changes(WORLD, WORLD.put(replace(WORLD.tickets["T1000"], title="A", priority="high"))).total() == 2


def test_distance_is_what_is_missing_and_what_is_too_much() -> None:
    assert plans.distance(WORLD, apply_calls(WORLD, [RAISE]), apply_calls(WORLD, [MOVE])) == 2
