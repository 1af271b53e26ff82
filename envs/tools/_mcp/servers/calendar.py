"""A server of several people's calendars. One is opened at a time, and only then shows its events."""

import re
from datetime import date

from envgym.envs.tools._mcp.servers.protocol import Json, McpServer, Refusal, serve

LAST_MINUTE = 24 * 60
_TIME = re.compile(r"(\d\d):(\d\d)")


class CalendarServer(McpServer):
    """Calendars by owner, and events of one day each, in minutes after midnight."""

    name = "calendar"
    graded = ("calendars", "events")

    def new_session(self) -> Json:
        return {"owner": None}

    def groups(self) -> frozenset[str]:
        """Offer events while a calendar is open."""
        return frozenset() if self.session["owner"] is None else frozenset({"open"})

    def list_calendars(self) -> list[str]:
        return sorted(self.tables["calendars"])

    def open_calendar(self, owner: str) -> str:
        self.find("calendars", owner, "calendar of")
        self.session["owner"] = owner
        return f"The calendar of {owner} is open."

    def close_calendar(self) -> str:
        self.session["owner"] = None
        return "Closed."

    def list_events(self, day: str) -> list[Json]:
        _check_day(day)
        return self._shown(day=day)

    def search_events(self, text: str) -> list[Json]:
        return self._shown(text=text)

    def add_event(self, title: str, day: str, start: str, minutes: int, room: str) -> Json:
        event = {"owner": self.session["owner"], "title": title, "day": _check_day(day), "room": room}
        event |= {"start": read_time(start), "minutes": minutes}
        self._check_free(event)
        key = self.new_id("events", "E")
        self.tables["events"][key] = event
        return _show(key, event)

    def move_event(self, event_id: str, day: str, start: str) -> Json:
        event = self._own(event_id)
        moved = {**event, "day": _check_day(day), "start": read_time(start)}
        self._check_free(moved, event_id)
        event.update(moved)
        return _show(event_id, event)

    def change_room(self, event_id: str, room: str) -> Json:
        event = self._own(event_id)
        event["room"] = room
        return _show(event_id, event)

    def cancel_event(self, event_id: str) -> str:
        self._own(event_id)
        del self.tables["events"][event_id]
        return f"Cancelled: {event_id}."

    def _shown(self, *, day: str | None = None, text: str = "") -> list[Json]:
        events = [
            (event["day"], event["start"], key, event)
            for key, event in self.tables["events"].items()
            if event["owner"] == self.session["owner"]
            and day in (None, event["day"])
            and text.lower() in event["title"].lower()
        ]
        return [_show(key, event) for _, _, key, event in sorted(events, key=lambda item: item[:3])]

    def _own(self, event_id: str) -> Json:
        event = self.tables["events"].get(event_id)
        if event is None or event["owner"] != self.session["owner"]:
            raise Refusal(f"There is no event {event_id!r:.100} in the calendar of {self.session['owner']}.")
        return event

    def _check_free(self, event: Json, key: str = "") -> None:
        end = event["start"] + event["minutes"]
        if end > LAST_MINUTE:
            raise Refusal("An event must end on the day that it begins.")
        for other_key, other in self.tables["events"].items():
            is_same_day = (other["owner"], other["day"]) == (event["owner"], event["day"])
            is_before = other["start"] < end and event["start"] < other["start"] + other["minutes"]
            if other_key != key and is_same_day and is_before:
                raise Refusal(f"It would overlap with {other_key}, {other['title']}.")


def read_time(text: str) -> int:
    """Return minutes after midnight. Raises: Refusal."""
    match = _TIME.fullmatch(text)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59:
        raise Refusal(f"A time is like 09:30, not {text!r:.100}.")
    return int(match[1]) * 60 + int(match[2])


def write_time(minutes: int) -> str:
    """Write minutes after midnight as a time."""
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _check_day(day: str) -> str:
    try:
        is_day = date.fromisoformat(day).isoformat() == day
    except ValueError:
        is_day = False
    if not is_day:
        raise Refusal(f"A day is like 2026-03-31, not {day!r:.100}.")
    return day


def _show(key: str, event: Json) -> Json:
    start, end = write_time(event["start"]), write_time(event["start"] + event["minutes"])
    return {"event_id": key, "title": event["title"], "day": event["day"], "time": f"{start}-{end}"} | {
        "room": event["room"]
    }


if __name__ == "__main__":
    serve(CalendarServer)
