"""The contacts."""

from dataclasses import replace

from envgym.envs.tools._office import desk
from envgym.envs.tools._office.desk import Desk, Shown
from envgym.envs.tools._office.world import Contact, shown
from envgym.errors import ToolError


class Contacts(Desk):
    """Tools of the contacts."""

    def contacts_search(self, text: str) -> list[Shown] | str:
        """Find people by words of their name, address, team or title.

        Args:
            text: Words that all must occur; empty for everybody.
        """
        return desk.listing(
            desk.matching(
                self.world.contacts, text, lambda who: (who.name, who.email, who.team, who.title), lambda who: True
            )
        )

    def contacts_get(self, email: str) -> Shown:
        """Show the person with an address.

        Args:
            email: The address.
        """
        wanted = desk.address(email)
        for contact in (self.world.owner, *self.world.contacts.values()):
            if contact.email == wanted:
                return shown(contact)
        raise ToolError(f"{wanted} is nobody's address in the contacts; contacts_search finds people by name.")

    def contacts_add(self, name: str, email: str, phone: str = "", team: str = "", title: str = "") -> Shown:
        """Add a person.

        Args:
            name: Full name.
            email: E-mail address.
            phone: Telephone number.
            team: Team or company.
            title: What the person does.
        """
        new = desk.address(email)
        if any(item.email == new for item in (self.world.owner, *self.world.contacts.values())):
            raise ToolError(f"{new} is in the contacts already; contacts_change changes it.")
        phone, team, title = (
            desk.clean(what, text, required=False)
            for what, text in (("phone", phone), ("team", team), ("title", title))
        )
        contact = Contact(self.world.new_id("contacts"), desk.clean("name", name), new, phone, team, title, "")
        return self._keep(contact)

    def contacts_change(
        self,
        contact_id: str,
        phone: str | None = None,
        team: str | None = None,
        title: str | None = None,
        manager: str | None = None,
    ) -> Shown:
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
                phone=contact.phone if phone is None else desk.clean("phone", phone, required=False),
                team=contact.team if team is None else desk.clean("team", team, required=False),
                title=contact.title if title is None else desk.clean("title", title, required=False),
                manager=contact.manager if manager is None else desk.colleague(self.world, manager),
            )
        )

    def contacts_delete(self, contact_id: str) -> str:
        """Delete a person from the contacts.

        Args:
            contact_id: Such as C1042.
        """
        contact = self._contact(contact_id)
        self.world = self.world.drop(contact)
        return f"{contact.id} {contact.name} is deleted."

    def _contact(self, contact_id: str) -> Contact:
        return desk.find(self.world.contacts, contact_id, "contact", "contacts_search")
