"""All apps of an office in one object."""

from collections.abc import Mapping

from envgym.envs.tools._office.calendar import Calendar
from envgym.envs.tools._office.contacts import Contacts
from envgym.envs.tools._office.files import Files
from envgym.envs.tools._office.mail import Mailbox
from envgym.envs.tools._office.tickets import Tickets
from envgym.tools import Tool, public_tools


class OfficeTools(Calendar, Mailbox, Files, Contacts, Tickets):
    """Calendar, mailbox, files, contacts and tickets; the public methods are the tools."""


def office_tools() -> Mapping[str, Tool]:
    """Return the tools by name."""
    return public_tools(OfficeTools, frozenset())
