"""A drawn office: people, a calendar, mails, files and tickets, in which a task can be set."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

import numpy as np

from envgym.authoring.sampler import Sampler, Unsuitable
from envgym.envs.tools._office import words
from envgym.envs.tools._office.calendar import free_starts
from envgym.envs.tools._office.state import (
    FIRST_NEW,
    PRIORITIES,
    Contact,
    Event,
    FileFolder,
    Mail,
    OfficeState,
    SupportTicket,
    TextFile,
    parse_moment,
    write_moment,
)

NUM_TEAMS, TEAM_SIZE, NUM_PARTNERS = 3, 4, 2
NUM_EVENTS, NUM_MAILS, NUM_FILES, NUM_TICKETS = 12, 13, 9, 12
NUM_DAYS = 8
"""Working days, after today, that hold events."""
_LENGTHS = (30, 45, 60, 90)
RecordT = TypeVar("RecordT")


class OfficeSampler(Sampler):
    """An office while it is drawn. What a task has used is not drawn again for it."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        ids = np.arange(1000, FIRST_NEW)
        self._ids = {letter: iter(rng.choice(ids, size=60, replace=False)) for letter in "CEMT"}
        """Ids set aside for the records that are there at the start."""
        self.is_closed = False
        """True where nothing may be added any more."""
        self._taken: set[str] = set()
        self.office = _empty_office(self)
        self.days = _working_days(self.office.today)
        """The days, after today, that hold events."""
        for draw in (self._events, self._mails, self._files, self._tickets):
            draw()

    # ---- drawing ---------------------------------------------------------------------------------------------------

    def number(self, letter: str) -> str:
        return f"{letter}{next(self._ids[letter])}"

    def phone(self, prefix: str) -> str:
        return f"{prefix} {self.rng.integers(1000, 10000)} {self.rng.integers(100, 1000)}"

    def fresh(self, items: Sequence[str]) -> str:
        """Draw a text that the task has not used."""
        text = self.one([item for item in items if item not in self._taken])
        self._taken.add(text)
        return text

    def new_event_title(self) -> str:
        """Draw a title that no event of the office has."""
        titles = {event.title for event in self.office.events.values()}
        return self.fresh([title for title in words.EVENTS if title not in titles])

    def _unused(self, records: Mapping[str, RecordT]) -> RecordT:
        return records[self.fresh([*records])]

    def person(self, *others: Contact, team: str | None = None, is_lead: bool | None = None) -> Contact:
        """Draw a colleague whom the task has not named, and who is none of `others`."""
        who = self.one(
            [
                item
                for item in self.office.contacts.values()
                if item not in others
                and item.email not in self._taken
                and item.team in words.TEAMS
                and team in (None, item.team)
                and is_lead in (None, not item.manager)
            ]
        )
        self._taken.add(who.email)
        return who

    def who(self, email: str) -> Contact:
        """Return the person with an address, who counts as named. Raises: Unsuitable: it is nobody else's."""
        self._taken.add(email)
        return self.one([item for item in self.office.contacts.values() if item.email == email])

    def event(self) -> Event:
        return self._unused(self.office.events)

    def mail(self) -> Mail:
        return self._unused({key: mail for key, mail in self.office.mails.items() if mail.folder == "inbox"})

    def file(self) -> TextFile:
        return self._unused(self.office.files)

    def ticket(self, *statuses: str, is_assigned: bool = False) -> SupportTicket:
        tickets = self.office.tickets.items()
        return self._unused(
            {key: item for key, item in tickets if item.status in statuses and (item.assignee or not is_assigned)}
        )

    def free(self, day: str, minutes: int) -> list[str]:
        """Return the free starts of a day. Raises: Unsuitable: there is none."""
        starts = free_starts(self.office, day, minutes)
        if not starts:
            raise Unsuitable
        return starts

    # ---- adding what a task needs -----------------------------------------------------------------------------------

    def add(self, *records: Contact | Event | Mail | TextFile | FileFolder | SupportTicket) -> None:
        if self.is_closed:
            raise Unsuitable
        self.office = self.office.put(*records)

    def add_event(self, title: str, day: str, minutes: int, attendees: Sequence[Contact]) -> Event:
        start = self.one(self.free(day, minutes))
        people = tuple(item.email for item in attendees)
        event = Event(self.number("E"), title, start, minutes, self.one(words.PLACES), people)
        self._taken.add(event.id)
        self.add(event)
        return event

    def add_mail(self, sender: Contact, subject: str, body: str, *, files: tuple[str, ...] = ()) -> Mail:
        to = (self.office.owner.email,)
        mail = Mail(self.number("M"), "inbox", sender.email, to, subject, body, self.past(), "", files)
        self._taken.add(mail.id)
        self.add(mail)
        return mail

    def add_file(self, path: str, content: str) -> TextFile:
        """Add a file. Raises: Unsuitable: the path is taken."""
        if path in self.office.files:
            raise Unsuitable
        file = TextFile(path, content, self.past()[:10])
        self._taken.add(path)
        self.add(file)
        return file

    def add_ticket(
        self, *, status: str = "open", priority: str | None = None, assignee: str = "", due: str = ""
    ) -> SupportTicket:
        """Add a ticket with a title that no other has."""
        used = {ticket.title for ticket in self.office.tickets.values()}
        title, text = self.one([pair for pair in words.TICKETS if pair[0] not in used])
        priority = priority or self.one(PRIORITIES[:3])
        ticket = SupportTicket(self.number("T"), title, text, status, priority, assignee, due)
        self._taken.add(ticket.id)
        self.add(ticket)
        return ticket

    def past(self) -> str:
        """Return a moment of the last ten days that no mail has."""
        begin, used = parse_moment(self.office.now), {mail.sent for mail in self.office.mails.values()}
        while True:
            moment = write_moment(begin - timedelta(minutes=int(self.rng.integers(30, 14_000))))
            if moment not in used:
                return moment

    # ---- filling ---------------------------------------------------------------------------------------------------

    def _events(self) -> None:
        colleagues = [*self.office.contacts.values()]
        for title in self.some(words.EVENTS, NUM_EVENTS):
            guests = self.some(colleagues, int(self.rng.integers(1, 5)))
            self.add_event(title, self.one(self.days), self.one(_LENGTHS), guests)
        self._taken.clear()

    def _mails(self) -> None:
        senders = [*self.office.contacts.values()]
        for index, (subject, body) in enumerate(self.some(words.MAILS, NUM_MAILS)):
            sender = self.one(senders)
            mail = self.add_mail(sender, subject, f"Hi {self.office.owner.name.split()[0]},\n{body}\n{sender.name}")
            if index % 5 == 4:
                self.office = self.office.put(replace(mail, folder=self.one(("archive", "projects"))))
        self._taken.clear()

    def _files(self) -> None:
        self.add(*(FileFolder(path) for path in words.FOLDERS))
        colleagues = [*self.office.contacts.values()]
        for folder, name, content in self.some(words.FILES, NUM_FILES):
            shared = tuple(who.email for who in self.some(colleagues, int(self.rng.integers(0, 3))))
            self.add(TextFile(f"{folder}/{name}", content, self.past()[:10], shared))

    def _tickets(self) -> None:
        colleagues = [who for who in self.office.contacts.values() if who.team in words.TEAMS]
        for index, (title, text) in enumerate(self.some(words.TICKETS, NUM_TICKETS)):
            status = ("open", "open", "in_progress", "open", "resolved", "open", "closed")[index % 7]
            assignee = self.one(colleagues).email if status != "open" or self.rng.integers(3) else ""
            due = self.one(self.days) if self.rng.integers(2) else ""
            comments = (self.one(words.COMMENTS),) if self.rng.integers(3) == 0 else ()
            self.add(
                SupportTicket(self.number("T"), title, text, status, self.one(PRIORITIES[:3]), assignee, due, comments)
            )


def _empty_office(draws: OfficeSampler) -> OfficeState:
    first = draws.some(words.FIRST_NAMES, NUM_TEAMS * TEAM_SIZE + NUM_PARTNERS)
    last = draws.some(words.LAST_NAMES, len(first))
    company = draws.one(words.COMPANIES)
    teams = draws.some(tuple(words.TEAMS), NUM_TEAMS)
    people: list[Contact] = []
    for team in teams:
        lead_title, title = words.TEAMS[team]
        for place in range(TEAM_SIZE):
            name = f"{first[len(people)]} {last[len(people)]}"
            lead = people[-place].email if place else ""
            people.append(_contact(draws, name, f"{company}.example", team, title if place else lead_title, lead))
    for partner in draws.some(words.PARTNERS, NUM_PARTNERS):
        name = f"{first[len(people)]} {last[len(people)]}"
        people.append(_contact(draws, name, f"{partner.split()[0].lower()}.example", partner, "Partner", ""))
    owner = people.pop(1)
    others = {who.id: who for who in draws.some(people, len(people))}
    begin = datetime(2026, 1, 5, 8, 50) + timedelta(weeks=int(draws.rng.integers(100)), days=int(draws.rng.integers(4)))
    return OfficeState(write_moment(begin), owner, others, {}, {}, {}, {}, {})


def _contact(draws: OfficeSampler, name: str, domain: str, team: str, title: str, manager: str) -> Contact:
    first, last = name.lower().split()
    phone = draws.phone("+49 30")
    return Contact(draws.number("C"), name, f"{first}.{last}@{domain}", phone, team, title, manager)


def _working_days(today: str) -> list[str]:
    days = (parse_moment(today) + timedelta(days=ahead) for ahead in range(1, 15))
    return [write_moment(day)[:10] for day in days if day.weekday() < 5][:NUM_DAYS]


def spoken_day(day: str) -> str:
    """Say a day, as in 'Thursday, 5 March'."""
    return parse_moment(day).strftime("%A, %-d %B")
