"""Tasks on the server `calendar`."""

from collections.abc import Mapping, Sequence

from envgym.envs.tools._mcp.plans import McpTaskPlan
from envgym.envs.tools._mcp.sampling import ServerSampler, TaskKind, request, suitable
from envgym.envs.tools._mcp.servers.calendar import write_time
from envgym.envs.tools._mcp.servers.protocol import Json
from envgym.envs.tools._office import words
from envgym.envs.tools._office.plans import plan_call

NUM_OWNERS, NUM_EVENTS = 3, 7
DAYS = ("2026-09-07", "2026-09-08", "2026-09-09", "2026-09-10")
_OPENS, _CLOSES = 8 * 60, 18 * 60
_LENGTHS = (30, 45, 60, 90, 120)


def _events(draws: ServerSampler) -> dict[str, Json]:
    owners, events = sorted(draws.people(NUM_OWNERS)), dict[str, Json]()
    titles = iter(draws.some(words.EVENTS, NUM_OWNERS * NUM_EVENTS))
    ids = iter(draws.some([f"E{number}" for number in range(200, 900)], NUM_OWNERS * NUM_EVENTS))
    for owner in owners:
        for _ in range(NUM_EVENTS):
            event: Json = {
                "owner": owner,
                "title": next(titles),
                "day": draws.one(DAYS),
                "room": draws.one(words.PLACES),
            }
            event |= {"minutes": draws.one(_LENGTHS), "start": 0}
            starts = [at for at in range(_OPENS, _CLOSES, 30) if _is_free(events, {**event, "start": at})]
            events[next(ids)] = {**event, "start": draws.one(starts)}
    draws.tables = {"calendars": {owner: {} for owner in owners}, "events": events}
    return events


def _is_free(events: Mapping[str, Json], event: Json, *but: str) -> bool:
    end = event["start"] + event["minutes"]
    others = (item for key, item in events.items() if key not in but and item["owner"] == event["owner"])
    is_met = any(
        item["day"] == event["day"] and item["start"] < end and event["start"] < item["start"] + item["minutes"]
        for item in others
    )
    return end <= _CLOSES and not is_met


def cancel_event(draws: ServerSampler) -> McpTaskPlan:
    """Cancel an event that is named."""
    events = _events(draws)
    key, goal = draws.one(list(events)), draws.goal()
    owner, title = events[key]["owner"], events[key]["title"]
    del goal["events"][key]
    return McpTaskPlan(
        texts=request("cancel_event", title=title, owner=owner),
        goal=goal,
        calls=(
            plan_call("open_calendar", owner=owner),
            plan_call("search_events", text=title),
            plan_call("cancel_event", event_id=key),
        ),
    )


def change_room(draws: ServerSampler) -> McpTaskPlan:
    """Hold an event that is named in another room."""
    events = _events(draws)
    key, goal = draws.one(list(events)), draws.goal()
    owner, title = events[key]["owner"], events[key]["title"]
    room = draws.one([item for item in words.PLACES if item != events[key]["room"]])
    goal["events"][key]["room"] = room
    return McpTaskPlan(
        texts=request("change_room", title=title, owner=owner, room=room),
        goal=goal,
        calls=(
            plan_call("open_calendar", owner=owner),
            plan_call("search_events", text=title),
            plan_call("change_room", event_id=key, room=room),
        ),
    )


def shift_day(draws: ServerSampler) -> McpTaskPlan:
    """Move an event to the same time of another day."""
    events = _events(draws)
    key, goal = draws.one(list(events)), draws.goal()
    event = events[key]
    day = draws.one([item for item in DAYS if item != event["day"]])
    suitable(_is_free(events, {**event, "day": day}, key))
    goal["events"][key]["day"] = day
    return McpTaskPlan(
        texts=request("shift_day", event=event, day=day),
        goal=goal,
        calls=(
            plan_call("open_calendar", owner=event["owner"]),
            plan_call("search_events", text=event["title"]),
            plan_call("list_events", day=day),
            plan_call("move_event", event_id=key, day=day, start=write_time(event["start"])),
        ),
    )


def follow_event(draws: ServerSampler) -> McpTaskPlan:
    """Add an event that begins where another one ends."""
    events = _events(draws)
    event, title = events[draws.one(list(events))], draws.one(words.NEW_EVENTS)
    added = {**event, "title": title, "minutes": 30, "start": event["start"] + event["minutes"]}
    added["room"] = draws.one(words.PLACES)
    suitable(_is_free(events, added))
    goal = draws.goal()
    goal["events"]["E1000"] = added
    return McpTaskPlan(
        texts=request("follow_event", title=title, event=event, added=added),
        goal=goal,
        calls=(
            plan_call("open_calendar", owner=event["owner"]),
            plan_call("search_events", text=event["title"]),
            plan_call(
                "add_event",
                title=title,
                day=event["day"],
                start=write_time(added["start"]),
                minutes=30,
                room=added["room"],
            ),
        ),
    )


def clear_room(draws: ServerSampler) -> McpTaskPlan:
    """Hold all events of a room on a day in another one, in all calendars."""
    events, goal = _events(draws), draws.goal()
    some = events[draws.one(list(events))]
    day, room = some["day"], some["room"]
    other = draws.one([item for item in words.PLACES if item != room])
    met = [key for key, item in events.items() if (item["day"], item["room"]) == (day, room)]
    suitable(2 <= len(met) <= 4)
    calls = [plan_call("list_calendars")]
    for owner in draws.tables["calendars"]:
        calls += [plan_call("open_calendar", owner=owner), plan_call("list_events", day=day)]
        calls += [plan_call("change_room", event_id=key, room=other) for key in met if events[key]["owner"] == owner]
    for key in met:
        goal["events"][key]["room"] = other
    return McpTaskPlan(
        texts=request("clear_room", room=room, day=day, other=other),
        goal=goal,
        calls=tuple(calls),
    )


def cancel_long(draws: ServerSampler) -> McpTaskPlan:
    """Cancel a person's long events on two days, and add one in place of the longest."""
    events, goal = _events(draws), draws.goal()
    owner, days = draws.one(list(draws.tables["calendars"])), sorted(draws.some(DAYS, 2))
    own = {key: item for key, item in events.items() if item["owner"] == owner and item["day"] in days}
    long = sorted((key for key in own if own[key]["minutes"] > 60), key=lambda key: own[key]["minutes"], reverse=True)
    suitable(len(long) >= 2 and own[long[0]]["minutes"] > own[long[1]]["minutes"])
    first = own[long[0]]
    added = {**first, "title": draws.one(words.NEW_EVENTS), "minutes": 30, "room": draws.one(words.PLACES)}
    for key in long:
        del goal["events"][key]
    goal["events"]["E1000"] = added
    start = write_time(first["start"])
    return McpTaskPlan(
        texts=request("cancel_long", owner=owner, days=days, added=added),
        goal=goal,
        calls=(
            plan_call("open_calendar", owner=owner),
            *(plan_call("list_events", day=day) for day in days),
            *(plan_call("cancel_event", event_id=key) for key in long),
            plan_call("add_event", title=added["title"], day=first["day"], start=start, minutes=30, room=added["room"]),
        ),
    )


TASK_KINDS: Mapping[int, Sequence[TaskKind]] = {
    1: (cancel_event, change_room),
    2: (shift_day, follow_event),
    3: (clear_room, cancel_long),
}
