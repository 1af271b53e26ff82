"""The tasks of `tools/mcp-v0`: each can be done, and not by less; splits; the oracle finds its way back."""

from collections.abc import Mapping, Sequence

import pytest

from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.envs.families import LEVELS
from envgym.envs.tools._mcp.plans import SERVERS, content, next_call, simulated
from envgym.envs.tools._mcp.servers.protocol import InvalidParams, Refusal, tools_of
from envgym.envs.tools._mcp.tasks import TASK_KINDS, draw_task, mcp_tasks
from envgym.envs.tools._office.plans import PlannedCall
from envgym.seeds import generator
from tests.support.mcp import SESSIONS, random_call

CELLS = [(server, level) for server in SERVERS for level in LEVELS]


def calls_of(payload: Mapping[str, JsonValue]) -> list[PlannedCall]:
    items = payload["calls"]
    assert isinstance(items, Sequence)
    return [PlannedCall(*item) for item in items]  # type: ignore[misc]  # pairs


def is_reached(payload: Mapping[str, JsonValue], calls: Sequence[PlannedCall]) -> bool:
    server = str(payload["server"])
    running = simulated(server, payload["tables"])
    try:
        for item in calls:
            running.call(item.tool, dict(item.arguments))
    except (Refusal, InvalidParams):
        return False
    goal = payload["goal"]
    assert isinstance(goal, Mapping)
    return content(server, running.tables) == content(server, goal)


@pytest.mark.parametrize("server, level", CELLS)
def test_calls_reach_the_goal_and_fewer_do_not(server: str, level: int) -> None:
    kinds = set()
    for number in range(12):
        draft = draw_task(generator("goal", number), server, level)
        kinds.add(draft.metadata["kind"])
        calls = calls_of(draft.payload)
        assert is_reached(draft.payload, calls)
        assert not is_reached(draft.payload, [])
        changing = [at for at, item in enumerate(calls) if not tools_of(server)[item.tool].get("reads")]
        for at in changing:
            assert not is_reached(draft.payload, [*calls[:at], *calls[at + 1 :]])
        assert is_reached(draft.payload, [calls[at] for at in changing])
    assert kinds == {kind.__name__ for kind in TASK_KINDS[server][level]}


@pytest.mark.parametrize("server, level", CELLS)
def test_oracle_finds_its_way_from_any_session(server: str, level: int) -> None:
    rng = generator("ways", server, level)
    for number in range(8):
        payload = draw_task(generator("way", number), server, level).payload
        calls, goal = calls_of(payload), payload["goal"]
        assert isinstance(goal, Mapping)
        running = simulated(server, payload["tables"])
        start = {"tables": payload["tables"], "session": running.new_session()}
        for _ in range(60):
            if rng.random() < 0.3:  # somebody begins or ends a session, and leaves the records alone
                try:
                    running.call(*random_call(running, rng, SESSIONS[server]))
                except Refusal:
                    continue
            item = next_call(server, start, calls, {"tables": running.tables, "session": running.session})
            if item is None:
                break
            running.call(item.tool, dict(item.arguments))
        assert content(server, running.tables) == content(server, goal)


def test_oracle_stops_where_something_else_was_changed() -> None:
    payload = draw_task(generator("lost"), "files", 1).payload
    running = simulated("files", payload["tables"])
    start = {"tables": payload["tables"], "session": running.new_session()}
    running.call("start_editing", {})
    running.call("write_file", {"path": "/notes/other.txt", "text": "x"})
    now = {"tables": running.tables, "session": running.session}
    assert next_call("files", start, calls_of(payload), now) is None


def test_ids_of_new_records_do_not_count() -> None:
    order: JsonValue = {"email": "a", "items": {"P1": 1}, "address": "x", "status": "open"}
    empty: dict[str, JsonValue] = {"products": {}, "customers": {}}
    assert content("shop", {**empty, "orders": {"R5": order}}) == content("shop", {**empty, "orders": {"R9": order}})
    page: JsonValue = {"title": "A", "section": "s", "lines": []}
    assert content("knowledge", {"pages": {"A": page}}) != content("knowledge", {"pages": {"B": page}})


def servers_of(tasks: Sequence[Task]) -> set[str]:
    return {str(task.payload["server"]) for task in tasks}


def test_held_out_servers_are_in_the_test_split_alone() -> None:
    source = mcp_tasks(tuple(SERVERS), LEVELS, ("shop", "knowledge"))
    train, test = ([source.task(split, index) for index in range(24)] for split in (Split.TRAIN, Split.TEST))
    assert servers_of(train) == {"files", "calendar"}
    assert servers_of(test) == {"shop", "knowledge"}
    assert {task.metadata["level"] for task in train} == {task.metadata["level"] for task in test} == set(LEVELS)


def test_without_held_out_servers_tasks_are_held_out_by_their_content() -> None:
    source = mcp_tasks(tuple(SERVERS), LEVELS, ())
    train, test = ([source.task(split, index) for index in range(24)] for split in (Split.TRAIN, Split.TEST))
    assert servers_of(train) == servers_of(test) == set(SERVERS)
    assert not {task.key for task in train} & {task.key for task in test}
    assert source.task(Split.TEST, 3) == source.task(Split.TEST, 3)


def test_wording_is_no_part_of_a_task() -> None:
    prompts: dict[str, set[str]] = {}
    for number in range(40):
        draft = draw_task(generator("words", number), "knowledge", 1)
        assert draft.prompt not in str(draft.payload)
        prompts.setdefault(str(draft.metadata["kind"]), set()).add(str(draft.metadata["wording"]))
    assert all(wordings == {"0", "1"} for wordings in prompts.values())
