"""The office as one immutable value: records in tables, and what differs between two offices.

A tool makes a new state, so a fork shares it, and the golden state of a task is a state like any other.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from envgym.core.json_types import JsonObject, JsonValue

STATUSES = ("open", "in_progress", "resolved", "closed")
PRIORITIES = ("low", "normal", "high", "urgent")
FIRST_NEW = 9001
"""Number of the first record made in an episode; the others have four digits below it."""
MAIL_FOLDERS = ("inbox", "archive", "projects", "sent", "trash")


@dataclass(frozen=True, slots=True)
class Contact:
    """A colleague or a partner."""

    id: str
    name: str
    email: str
    phone: str
    team: str
    title: str
    manager: str
    """Address; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the calendar."""

    id: str
    title: str
    start: str
    minutes: int
    place: str
    attendees: tuple[str, ...] = ()
    """Addresses, without the owner's."""


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail of the owner's."""

    id: str
    folder: str
    sender: str
    to: tuple[str, ...]
    subject: str
    body: str
    sent: str
    answers: str = ""
    """Id of the mail that it replies to or forwards."""
    files: tuple[str, ...] = ()
    """Paths."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text file."""

    path: str
    content: str
    modified: str
    """Day."""
    shared: tuple[str, ...] = ()
    """Addresses."""


@dataclass(frozen=True, slots=True)
class FileFolder:
    """A folder for files."""

    path: str


@dataclass(frozen=True, slots=True)
class SupportTicket:
    """A piece of work that somebody asked for."""

    id: str
    title: str
    text: str
    status: str
    priority: str
    assignee: str
    """Address; empty where nobody has it."""
    due: str
    """Day; empty where there is none."""
    comments: tuple[str, ...] = ()


Record = Contact | Event | Mail | TextFile | FileFolder | SupportTicket
_SEPARATOR = re.compile(r"(?<=\d),(?=\d{3}\b)")
Change = tuple[object, ...]
"""(table, key, field, value now), (table, key, "deleted") or (table, "new", *values)."""


@dataclass(frozen=True, slots=True)
class OfficeState:
    """Everything there is; the tables are never changed, only replaced."""

    now: str
    owner: Contact
    contacts: Mapping[str, Contact]
    events: Mapping[str, Event]
    mails: Mapping[str, Mail]
    files: Mapping[str, TextFile]
    folders: Mapping[str, FileFolder]
    tickets: Mapping[str, SupportTicket]

    @property
    def today(self) -> str:
        return self.now[:10]

    def put(self, *records: Record) -> "OfficeState":
        office = self
        for record in records:
            table = _TABLE_OF[type(record)]
            office = office._with(table, {**getattr(office, table), key_of(record): record})
        return office

    def drop(self, *records: Record) -> "OfficeState":
        office = self
        for record in records:
            table = _TABLE_OF[type(record)]
            rest = {key: value for key, value in getattr(office, table).items() if key != key_of(record)}
            office = office._with(table, rest)
        return office

    def _with(self, table: str, records: Mapping[str, Record]) -> "OfficeState":
        changed: dict[str, Any] = {table: records}  # one of the tables, by its name
        return replace(self, **changed)

    def new_id(self, table: str) -> str:
        """Return the id that the next new record of a table gets: above all that were there at the start."""
        highest = max((int(key[1:]) for key in getattr(self, table)), default=0)
        return f"{_LETTERS[table]}{max(highest, FIRST_NEW - 1) + 1}"


_TYPES: Mapping[str, type[Record]] = MappingProxyType(
    {
        "contacts": Contact,
        "events": Event,
        "mails": Mail,
        "files": TextFile,
        "folders": FileFolder,
        "tickets": SupportTicket,
    }
)
_TABLE_OF = MappingProxyType({kind: table for table, kind in _TYPES.items()})
_LETTERS = MappingProxyType({"contacts": "C", "events": "E", "mails": "M", "tickets": "T"})
"""First letters of ids; files and folders are named by their paths."""
_FIELDS = MappingProxyType({kind: tuple(item.name for item in fields(kind)) for kind in _TABLE_OF})
_VALUES: Mapping[type[Record], Callable[[Any], Any]] = MappingProxyType(  # attrgetter's own type
    {kind: attrgetter(*names) if len(names) > 1 else lambda record: (record.path,) for kind, names in _FIELDS.items()}
)
"""How to read all fields at once."""


def key_of(record: Record) -> str:
    """Return the key of a record in its table: its first field."""
    return record.path if isinstance(record, TextFile | FileFolder) else record.id


def values_of(record: Record) -> tuple[str | int | tuple[str, ...], ...]:
    """Return the values of a record's fields, in order."""
    values: tuple[str | int | tuple[str, ...], ...] = _VALUES[type(record)](record)
    return values


def show_record(record: Record, *leave_out: str) -> dict[str, object]:
    """Return a record as a tool shows it, without some of its fields."""
    values: dict[str, object] = dict(zip(_FIELDS[type(record)], values_of(record), strict=True))
    for name in leave_out:
        del values[name]
    return values


def parse_moment(moment: str) -> datetime:
    """Read a moment or a day."""
    return datetime.fromisoformat(moment)


def write_moment(moment: datetime) -> str:
    """Write a moment, as in 2026-03-05 14:30; its first ten characters are the day."""
    return moment.isoformat(sep=" ", timespec="minutes")


def minute_of(moment: str) -> int:
    """Return the minutes since midnight."""
    return int(moment[11:13]) * 60 + int(moment[14:16])


def moment_at(day: str, minute: int) -> str:
    """Return the moment of a day that is so many minutes, less than a day's, after midnight."""
    return f"{day} {minute // 60:02d}:{minute % 60:02d}"


# ---- what differs -------------------------------------------------------------------------------------------------


def find_changes(before: OfficeState, after: OfficeState) -> Counter[Change]:
    """Return the differences of `after`, one entry for each changed field, new record and deleted record.

    Texts are compared without regard to case, white space, a final full stop, and separators within numbers; sets of
    addresses without regard to order. The id of a new record does not count, because it depends on the order of work.
    """
    changes: Counter[Change] = Counter()
    for table in _TYPES:
        old, new = getattr(before, table), getattr(after, table)
        if old is new:
            continue
        changes.update((table, key, "deleted") for key in old if key not in new)
        for key, record in new.items():
            if key not in old:
                own_key = 1 if table in _LETTERS else 0
                changes[table, "new", *(_plain(value) for value in values_of(record)[own_key:])] += 1
            elif record is not old[key]:
                changes.update(_changed_fields(table, key, old[key], record))
    return changes


def _changed_fields(table: str, key: str, old: Record, new: Record) -> list[Change]:
    pairs = zip(_FIELDS[type(new)], values_of(old), values_of(new), strict=True)
    plain = [(name, _plain(before), _plain(now)) for name, before, now in pairs]
    return [(table, key, name, now) for name, before, now in plain if before != now]


def _plain(value: str | int | tuple[str, ...]) -> object:
    if isinstance(value, tuple):
        return tuple(sorted(str(_plain(part)) for part in value))
    if isinstance(value, int):
        return value
    text = " ".join(value.split()).casefold().rstrip(".!")
    return _SEPARATOR.sub("", text) if "," in text else text


# ---- as JSON ------------------------------------------------------------------------------------------------------


def to_json(office: OfficeState) -> JsonObject:
    """Write an office as JSON: rows of values, table by table."""
    return {
        "now": office.now,
        "owner": _row(office.owner),
        **{table: [_row(record) for record in getattr(office, table).values()] for table in _TYPES},
    }


def from_json(data: JsonObject) -> OfficeState:
    """Read what `to_json` wrote."""
    tables = {table: _table(kind, data[table]) for table, kind in _TYPES.items()}
    return OfficeState(now=str(data["now"]), owner=Contact(*_values(data["owner"])), **tables)  # type: ignore[arg-type]  # by the table of types


def _row(record: Record) -> JsonValue:
    return [list(value) if isinstance(value, tuple) else value for value in values_of(record)]


def _table(kind: type[Record], rows: JsonValue) -> dict[str, Record]:
    assert isinstance(rows, list), "written by to_json"
    records = [kind(*_values(row)) for row in rows]
    return {key_of(record): record for record in records}


def _values(row: JsonValue) -> list[Any]:  # as the record's fields say
    assert isinstance(row, list), "written by to_json"
    return [tuple(value) if type(value) is list else value for value in row]
