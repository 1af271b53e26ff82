"""The contacts."""

from dataclasses import replace

from envgym.envs.tools._office import app_base
from envgym.envs.tools._office.app_base import OfficeApp, RecordFields
from envgym.envs.tools._office.state import Contact, show_record
from envgym.errors import ToolError


class Contacts(OfficeApp):
    """Tools of the contacts."""

    def contacts_search(self, text: str) -> list[RecordFields] | str:
        """Find people by words of their name, address, team or title.

        Args:
            text: Words that all must occur; empty for everybody.
        """
        return app_base.list_records(
            app_base.find_matching(
                self.office.contacts, text, lambda who: (who.name, who.email, who.team, who.title), lambda who: True
            )
        )

    def contacts_get(self, email: str) -> RecordFields:
        """Show the person with an address.

        Args:
            email: The address.
        """
        address = app_base.check_address(email)
        for contact in (self.office.owner, *self.office.contacts.values()):
            if contact.email == address:
                return show_record(contact)
        raise ToolError(f"{address} is nobody's address in the contacts; contacts_search finds people by name.")

    def contacts_add(self, name: str, email: str, phone: str = "", team: str = "", title: str = "") -> RecordFields:
        """Add a person.

        Args:
            name: Full name.
            email: E-mail address.
            phone: Telephone number.
            team: Team or company.
            title: What the person does.
        """
        new = app_base.check_address(email)
        if any(item.email == new for item in (self.office.owner, *self.office.contacts.values())):
            raise ToolError(f"{new} is in the contacts already; contacts_change changes it.")
        phone, team, title = (
            app_base.check_text(what, text, required=False)
            for what, text in (("phone", phone), ("team", team), ("title", title))
        )
        contact = Contact(
            self.office.new_id("contacts"), app_base.check_text("name", name), new, phone, team, title, ""
        )
        return self._keep(contact)

    def contacts_change(
        self,
        contact_id: str,
        phone: str | None = None,
        team: str | None = None,
        title: str | None = None,
        manager: str | None = None,
    ) -> RecordFields:
        """Change what is known of a person; what is not given stays.

        Args:
            contact_id: Such as C1042.
            phone: The new telephone number.
            team: The new team.
            title: The new title.
            manager: E-mail address of the new manager.
        """
        contact = self._contact(contact_id)
        return self._keep(
            replace(
                contact,
                phone=contact.phone if phone is None else app_base.check_text("phone", phone, required=False),
                team=contact.team if team is None else app_base.check_text("team", team, required=False),
                title=contact.title if title is None else app_base.check_text("title", title, required=False),
                manager=contact.manager if manager is None else app_base.check_colleague(self.office, manager),
            )
        )

    def contacts_delete(self, contact_id: str) -> str:
        """Delete a person from the contacts.

        Args:
            contact_id: Such as C1042.
        """
        contact = self._contact(contact_id)
        self.office = self.office.drop(contact)
        return f"{contact.id} {contact.name} is deleted."

    def _contact(self, contact_id: str) -> Contact:
        return app_base.find(self.office.contacts, contact_id, "contact", "contacts_search")
