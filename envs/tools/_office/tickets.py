"""The tickets: open, in progress, resolved, closed; what is closed must be opened again before it can be changed."""

from dataclasses import replace

from envgym.envs.tools._office import desk
from envgym.envs.tools._office.desk import Desk, Shown
from envgym.envs.tools._office.world import PRIORITIES, STATUSES, Ticket, shown
from envgym.errors import ToolError


class Tickets(Desk):
    """Tools of the tickets."""

    def tickets_list(self, status: str = "", priority: str = "", assignee: str = "") -> list[Shown] | str:
        """List tickets without their texts and comments.

        Args:
            status: open, in_progress, resolved or closed; any if empty.
            priority: low, normal, high or urgent; any if empty.
            assignee: E-mail address, or none for tickets that nobody has; anybody if empty.
        """
        wanted_status = desk.one_of("status", status, STATUSES) if status.strip() else ""
        wanted_priority = desk.one_of("priority", priority, PRIORITIES) if priority.strip() else ""
        who = assignee.strip().lower()
        found = [
            ticket
            for ticket in self.world.tickets.values()
            if wanted_status in ("", ticket.status)
            and wanted_priority in ("", ticket.priority)
            and (not who or who == (ticket.assignee or "none"))
        ]
        return desk.listing(found, "text", "comments")

    def tickets_search(self, text: str) -> list[Shown] | str:
        """Find tickets by words of their title or text.

        Args:
            text: Words that all must occur.
        """
        found = desk.matching(self.world.tickets, text, lambda ticket: (ticket.title, ticket.text), lambda ticket: True)
        return desk.listing(found, "text", "comments")

    def tickets_get(self, ticket_id: str) -> Shown:
        """Show a whole ticket.

        Args:
            ticket_id: Such as T1042.
        """
        return shown(self._ticket(ticket_id))

    def tickets_create(self, title: str, text: str = "", priority: str = "normal", assignee: str = "") -> Shown:
        """Create an open ticket.

        Args:
            title: Its title.
            text: What it is about.
            priority: low, normal, high or urgent.
            assignee: E-mail address of somebody in the contacts; nobody if empty.
        """
        ticket = Ticket(
            id=self.world.new_id("tickets"),
            title=desk.clean("title", title),
            text=desk.clean("text", text, required=False),
            status="open",
            priority=desk.one_of("priority", priority, PRIORITIES),
            assignee=desk.colleague(self.world, assignee) if assignee.strip() else "",
            due="",
        )
        return self._keep(ticket)

    def tickets_assign(self, ticket_id: str, assignee: str) -> Shown:
        """Give a ticket to somebody.

        Args:
            ticket_id: Such as T1042.
            assignee: E-mail address of somebody in the contacts.
        """
        return self._keep(replace(self._not_closed(ticket_id), assignee=desk.colleague(self.world, assignee)))

    def tickets_set_priority(self, ticket_id: str, priority: str) -> Shown:
        """Set how urgent a ticket is.

        Args:
            ticket_id: Such as T1042.
            priority: low, normal, high or urgent.
        """
        ticket = self._not_closed(ticket_id)
        return self._keep(replace(ticket, priority=desk.one_of("priority", priority, PRIORITIES)))

    def tickets_set_status(self, ticket_id: str, status: str) -> Shown:
        """Set how far a ticket is. Only a resolved ticket can be closed, only one that somebody has can be in progress.

        Args:
            ticket_id: Such as T1042.
            status: open, in_progress, resolved or closed.
        """
        ticket, new = self._ticket(ticket_id), desk.one_of("status", status, STATUSES)
        if new == "closed" and ticket.status not in ("resolved", "closed"):
            raise ToolError(f"{ticket.id} is {ticket.status}: only a resolved ticket can be closed; resolve it first.")
        if new == "in_progress" and not ticket.assignee:
            raise ToolError(f"{ticket.id} has no assignee, so it cannot be in progress; assign it first.")
        if ticket.status == "closed" and new not in ("open", "closed"):
            raise ToolError(f"{ticket.id} is closed; set it to open first.")
        return self._keep(replace(ticket, status=new))

    def tickets_set_due(self, ticket_id: str, due: str) -> Shown:
        """Set the day by which a ticket must be done.

        Args:
            ticket_id: Such as T1042.
            due: Such as 2026-03-05.
        """
        return self._keep(replace(self._not_closed(ticket_id), due=desk.day("due", due)))

    def tickets_comment(self, ticket_id: str, text: str) -> Shown:
        """Add a comment to a ticket, also to a closed one.

        Args:
            ticket_id: Such as T1042.
            text: The comment.
        """
        ticket = self._ticket(ticket_id)
        return self._keep(replace(ticket, comments=(*ticket.comments, desk.clean("text", text))))

    def _ticket(self, ticket_id: str) -> Ticket:
        return desk.find(self.world.tickets, ticket_id, "ticket", "tickets_list")

    def _not_closed(self, ticket_id: str) -> Ticket:
        ticket = self._ticket(ticket_id)
        if ticket.status == "closed":
            raise ToolError(f"{ticket.id} is closed; set it to open first.")
        return ticket
