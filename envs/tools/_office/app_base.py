"""What every app shares: the office, how a record is found, and how a refusal is worded."""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from envgym.core.json_types import well_formed
from envgym.envs.tools._office.state import OfficeState, Record, parse_moment, show_record, write_moment
from envgym.errors import ToolError, near_names

RecordT = TypeVar("RecordT", bound=Record)
RecordFields = dict[str, object]
"""A record as a tool shows it, fit for JSON."""

MAX_TEXT, MAX_LISTED = 4_000, 40
_ADDRESS = re.compile(r"[^\s@,;]+@[^\s@,;]+\.[a-z]+")


class OfficeApp:
    """The current state of the office. A subclass adds methods that read or replace it: the tools."""

    def __init__(self, office: OfficeState) -> None:
        self.office = office

    def _keep(self, record: Record) -> RecordFields:
        self.office = self.office.put(record)
        return show_record(record)


def find(table: Mapping[str, RecordT], key: str, what: str, look: str) -> RecordT:
    """Return a record by its key. Raises: ToolError: there is none; `look` names the tool that shows the keys."""
    record = table.get(key.strip())
    if record is None:
        near = near_names(key[:60], table)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ToolError(f"There is no {what} {key[:60]!r}.{hint} {look} shows what there is.")
    return record


def find_matching(
    table: Mapping[str, RecordT],
    text: str,
    parts: Callable[[RecordT], tuple[str, ...]],
    is_wanted: Callable[[RecordT], bool],
) -> list[RecordT]:
    """Return the wanted records whose parts hold every word of `text`, in any case."""
    words = text.casefold().split()
    return [
        record
        for record in table.values()
        if is_wanted(record) and (not words or _holds("\n".join(parts(record)).casefold(), words))
    ]


def _holds(text: str, words: list[str]) -> bool:
    return all(word in text for word in words)


def list_records(records: list[RecordT], *leave_out: str) -> list[RecordFields] | str:
    """Show up to 40 records without some of their fields."""
    if not records:
        return "Nothing found."
    rows = [show_record(record, *leave_out) for record in records]
    if len(rows) > MAX_LISTED:
        rows = [*rows[:MAX_LISTED], {"note": f"{len(rows) - MAX_LISTED} more are not shown; ask for less"}]
    return rows


def check_text(name: str, text: str, *, required: bool = True) -> str:
    """Return a text that is stored. Raises: ToolError: it is empty, or longer than 4,000 characters."""
    text = well_formed(text).strip()
    if required and not text:
        raise ToolError(f"{name} must not be empty.")
    if len(text) > MAX_TEXT:
        raise ToolError(f"{name} must have at most {MAX_TEXT} characters, got {len(text)}.")
    return text


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return one of the allowed words. Raises: ToolError: it is none."""
    word = value.strip().lower()
    if word not in allowed:
        raise ToolError(f"{name} must be one of {', '.join(allowed)}, got {value[:60]!r}.")
    return word


def check_address(text: str) -> str:
    """Return an address. Raises: ToolError: it is none."""
    address = text.strip().lower()
    if not _ADDRESS.fullmatch(address) or len(address) > 100:
        raise ToolError(f"{text[:60]!r} is no e-mail address; contacts_search shows the addresses of people.")
    return address


def check_addresses(texts: list[str]) -> tuple[str, ...]:
    """Return addresses, each once. Raises: ToolError: one is none."""
    return tuple(dict.fromkeys(check_address(text) for text in texts))


def check_colleague(office: OfficeState, text: str) -> str:
    """Return the address of somebody in the contacts, or the owner's. Raises: ToolError: it is nobody's."""
    email = check_address(text)
    if email != office.owner.email and all(item.email != email for item in office.contacts.values()):
        raise ToolError(f"{email} is nobody's address in the contacts; contacts_search shows the addresses of people.")
    return email


def check_moment(name: str, text: str) -> str:
    """Return a moment as it is written here. Raises: ToolError: it is none."""
    try:
        return write_moment(parse_moment(text.strip().replace("T", " ")[:16]))
    except ValueError:
        raise ToolError(f"{name} must be written like 2026-03-05 14:30, got {text[:60]!r}.") from None


def check_day(name: str, text: str) -> str:
    """Return a day as it is written here. Raises: ToolError: it is none."""
    try:
        return write_moment(parse_moment(text.strip()[:10]))[:10]
    except ValueError:
        raise ToolError(f"{name} must be written like 2026-03-05, got {text[:60]!r}.") from None
