"""The tickets: open, in progress, resolved, closed; what is closed must be opened again before it can be changed."""

from dataclasses import replace

from envgym.envs.tools._office import app_base
from envgym.envs.tools._office.app_base import OfficeApp, RecordFields
from envgym.envs.tools._office.state import PRIORITIES, STATUSES, SupportTicket, show_record
from envgym.errors import ToolError


class Tickets(OfficeApp):
    """Tools of the tickets."""

    def tickets_list(self, status: str = "", priority: str = "", assignee: str = "") -> list[RecordFields] | str:
        """List tickets without their texts and comments.

        Args:
            status: open, in_progress, resolved or closed; any if empty.
            priority: low, normal, high or urgent; any if empty.
            assignee: E-mail address, or none for tickets that nobody has; anybody if empty.
        """
        wanted_status = app_base.check_choice("status", status, STATUSES) if status.strip() else ""
        wanted_priority = app_base.check_choice("priority", priority, PRIORITIES) if priority.strip() else ""
        who = assignee.strip().lower()
        tickets = [
            ticket
            for ticket in self.office.tickets.values()
            if wanted_status in ("", ticket.status)
            and wanted_priority in ("", ticket.priority)
            and (not who or who == (ticket.assignee or "none"))
        ]
        return app_base.list_records(tickets, "text", "comments")

    def tickets_search(self, text: str) -> list[RecordFields] | str:
        """Find tickets by words of their title or text.

        Args:
            text: Words that all must occur.
        """
        tickets = app_base.find_matching(
            self.office.tickets, text, lambda ticket: (ticket.title, ticket.text), lambda ticket: True
        )
        return app_base.list_records(tickets, "text", "comments")

    def tickets_get(self, ticket_id: str) -> RecordFields:
        """Show a whole ticket.

        Args:
            ticket_id: Such as T1042.
        """
        return show_record(self._ticket(ticket_id))

    def tickets_create(self, title: str, text: str = "", priority: str = "normal", assignee: str = "") -> RecordFields:
        """Create an open ticket.

        Args:
            title: Its title.
            text: What it is about.
            priority: low, normal, high or urgent.
            assignee: E-mail address of somebody in the contacts; nobody if empty.
        """
        ticket = SupportTicket(
            id=self.office.new_id("tickets"),
            title=app_base.check_text("title", title),
            text=app_base.check_text("text", text, required=False),
            status="open",
            priority=app_base.check_choice("priority", priority, PRIORITIES),
            assignee=app_base.check_colleague(self.office, assignee) if assignee.strip() else "",
            due="",
        )
        return self._keep(ticket)

    def tickets_assign(self, ticket_id: str, assignee: str) -> RecordFields:
        """Give a ticket to somebody.

        Args:
            ticket_id: Such as T1042.
            assignee: E-mail address of somebody in the contacts.
        """
        return self._keep(
            replace(self._not_closed(ticket_id), assignee=app_base.check_colleague(self.office, assignee))
        )

    def tickets_set_priority(self, ticket_id: str, priority: str) -> RecordFields:
        """Set how urgent a ticket is.

        Args:
            ticket_id: Such as T1042.
            priority: low, normal, high or urgent.
        """
        ticket = self._not_closed(ticket_id)
        return self._keep(replace(ticket, priority=app_base.check_choice("priority", priority, PRIORITIES)))

    def tickets_set_status(self, ticket_id: str, status: str) -> RecordFields:
        """Set how far a ticket is. Only a resolved ticket can be closed, only one that somebody has can be in progress.

        Args:
            ticket_id: Such as T1042.
            status: open, in_progress, resolved or closed.
        """
        ticket, new = self._ticket(ticket_id), app_base.check_choice("status", status, STATUSES)
        if new == "closed" and ticket.status not in ("resolved", "closed"):
            raise ToolError(f"{ticket.id} is {ticket.status}: only a resolved ticket can be closed; resolve it first.")
        if new == "in_progress" and not ticket.assignee:
            raise ToolError(f"{ticket.id} has no assignee, so it cannot be in progress; assign it first.")
        if ticket.status == "closed" and new not in ("open", "closed"):
            raise ToolError(f"{ticket.id} is closed; set it to open first.")
        return self._keep(replace(ticket, status=new))

    def tickets_set_due(self, ticket_id: str, due: str) -> RecordFields:
        """Set the day by which a ticket must be done.

        Args:
            ticket_id: Such as T1042.
            due: Such as 2026-03-05.
        """
        return self._keep(replace(self._not_closed(ticket_id), due=app_base.check_day("due", due)))

    def tickets_comment(self, ticket_id: str, text: str) -> RecordFields:
        """Add a comment to a ticket, also to a closed one.

        Args:
            ticket_id: Such as T1042.
            text: The comment.
        """
        ticket = self._ticket(ticket_id)
        return self._keep(replace(ticket, comments=(*ticket.comments, app_base.check_text("text", text))))

    def _ticket(self, ticket_id: str) -> SupportTicket:
        return app_base.find(self.office.tickets, ticket_id, "ticket", "tickets_list")

    def _not_closed(self, ticket_id: str) -> SupportTicket:
        ticket = self._ticket(ticket_id)
        if ticket.status == "closed":
            raise ToolError(f"{ticket.id} is closed; set it to open first.")
        return ticket
