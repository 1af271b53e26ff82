"""All apps at one desk."""

from collections.abc import Mapping

from envgym.envs.tools._office.calendar import Calendar
from envgym.envs.tools._office.contacts import Contacts
from envgym.envs.tools._office.files import Files
from envgym.envs.tools._office.mail import Mailbox
from envgym.envs.tools._office.tickets import Tickets
from envgym.tools import Tool, public_tools


class Office(Calendar, Mailbox, Files, Contacts, Tickets):
    """A desk with a calendar, a mailbox, files, contacts and tickets; its public methods are the tools."""


def office_tools() -> Mapping[str, Tool]:
    """Return the tools by name."""
    return public_tools(Office, frozenset())
