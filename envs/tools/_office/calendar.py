"""The calendar."""

from dataclasses import replace

from envgym.envs.tools._office import app_base
from envgym.envs.tools._office.app_base import OfficeApp, RecordFields
from envgym.envs.tools._office.state import Event, OfficeState, minute_of, moment_at
from envgym.errors import ToolError

FIRST_HOUR, LAST_HOUR = 9, 17
"""Working hours."""
MAX_MINUTES = 480
_LOOK = "calendar_list"


class Calendar(OfficeApp):
    """Tools of the calendar."""

    def calendar_list(self, first_day: str, last_day: str) -> list[RecordFields] | str:
        """List the events of some days, in order.

        Args:
            first_day: Such as 2026-03-02.
            last_day: Such as 2026-03-06; the same as first_day for one day.
        """
        first, last = app_base.check_day("first_day", first_day), app_base.check_day("last_day", last_day)
        if last < first:
            raise ToolError(f"last_day must not be before first_day, got {first} to {last}.")
        events = [event for event in self.office.events.values() if first <= event.start[:10] <= last]
        return app_base.list_records(sorted(events, key=lambda event: event.start))

    def calendar_search(self, text: str) -> list[RecordFields] | str:
        """Find events by words of their title, place or attendees' addresses.

        Args:
            text: Words that all must occur.
        """
        events = app_base.find_matching(
            self.office.events, text, lambda event: (event.title, event.place, *event.attendees), lambda event: True
        )
        return app_base.list_records(sorted(events, key=lambda event: event.start))

    def calendar_free(self, day: str, minutes: int) -> RecordFields:
        """List the starts, on every full and half hour from 09:00, at which nothing else is until the end.

        Args:
            day: Such as 2026-03-05.
            minutes: How long the free time must be; it must end by 17:00.
        """
        if not 1 <= minutes <= MAX_MINUTES:
            raise ToolError(f"minutes must be from 1 to {MAX_MINUTES}, got {minutes}.")
        return {"free_starts": free_starts(self.office, app_base.check_day("day", day), minutes)}

    def calendar_create(
        self, title: str, start: str, minutes: int, place: str = "", attendees: list[str] | None = None
    ) -> RecordFields:
        """Create an event.

        Args:
            title: Its title.
            start: Such as 2026-03-05 14:30.
            minutes: How long it takes.
            place: Where it is.
            attendees: E-mail addresses of people in the contacts, without yourself.
        """
        if not 1 <= minutes <= MAX_MINUTES:
            raise ToolError(f"minutes must be from 1 to {MAX_MINUTES}, got {minutes}.")
        people = tuple(dict.fromkeys(app_base.check_colleague(self.office, who) for who in attendees or []))
        event = Event(
            id=self.office.new_id("events"),
            title=app_base.check_text("title", title),
            start=app_base.check_moment("start", start),
            minutes=minutes,
            place=app_base.check_text("place", place, required=False),
            attendees=tuple(who for who in people if who != self.office.owner.email),
        )
        return self._keep(event)

    def calendar_move(self, event_id: str, start: str) -> RecordFields:
        """Let an event begin at another time; it takes as long as before.

        Args:
            event_id: Such as E1042.
            start: Such as 2026-03-05 14:30.
        """
        return self._keep(replace(self._event(event_id), start=app_base.check_moment("start", start)))

    def calendar_change(
        self, event_id: str, title: str | None = None, minutes: int | None = None, place: str | None = None
    ) -> RecordFields:
        """Change the title, length or place of an event; what is not given stays.

        Args:
            event_id: Such as E1042.
            title: The new title.
            minutes: How long it takes from now on.
            place: The new place.
        """
        event = self._event(event_id)
        if minutes is not None and not 1 <= minutes <= MAX_MINUTES:
            raise ToolError(f"minutes must be from 1 to {MAX_MINUTES}, got {minutes}.")
        return self._keep(
            replace(
                event,
                title=event.title if title is None else app_base.check_text("title", title),
                minutes=event.minutes if minutes is None else minutes,
                place=event.place if place is None else app_base.check_text("place", place, required=False),
            )
        )

    def calendar_invite(self, event_id: str, email: str) -> RecordFields:
        """Add somebody to an event.

        Args:
            event_id: Such as E1042.
            email: Address of somebody in the contacts.
        """
        event, who = self._event(event_id), app_base.check_colleague(self.office, email)
        if who in event.attendees or who == self.office.owner.email:
            raise ToolError(f"{who} attends {event.id} already.")
        return self._keep(replace(event, attendees=(*event.attendees, who)))

    def calendar_uninvite(self, event_id: str, email: str) -> RecordFields:
        """Take somebody off an event.

        Args:
            event_id: Such as E1042.
            email: Address of somebody who attends it.
        """
        event, who = self._event(event_id), app_base.check_address(email)
        if who not in event.attendees:
            raise ToolError(
                f"{who} does not attend {event.id}; its attendees are {', '.join(event.attendees) or 'none'}."
            )
        return self._keep(replace(event, attendees=tuple(other for other in event.attendees if other != who)))

    def calendar_cancel(self, event_id: str) -> str:
        """Cancel an event.

        Args:
            event_id: Such as E1042.
        """
        event = self._event(event_id)
        self.office = self.office.drop(event)
        return f"{event.id} {event.title!r} is cancelled."

    def _event(self, event_id: str) -> Event:
        return app_base.find(self.office.events, event_id, "event", _LOOK)


def free_starts(office: OfficeState, day: str, minutes: int) -> list[str]:
    """Return the moments of a day, every half hour, from which there are so many free minutes within working hours."""
    busy = [
        (minute_of(event.start), minute_of(event.start) + event.minutes)
        for event in office.events.values()
        if event.start[:10] == day
    ]
    starts = range(60 * FIRST_HOUR, 60 * LAST_HOUR - minutes + 1, 30)
    return [
        moment_at(day, start) for start in starts if all(start + minutes <= since or start >= to for since, to in busy)
    ]


def end_of(event: Event) -> str:
    """Return the moment at which an event ends, on its day."""
    return moment_at(event.start[:10], minute_of(event.start) + event.minutes)
