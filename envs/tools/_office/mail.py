"""The mailbox."""

from dataclasses import replace

from envgym.envs.tools._office import app_base
from envgym.envs.tools._office.app_base import OfficeApp, RecordFields
from envgym.envs.tools._office.state import MAIL_FOLDERS, Mail, OfficeState, show_record
from envgym.errors import ToolError


class Mailbox(OfficeApp):
    """Tools of the mailbox."""

    def mail_list(self, folder: str = "inbox") -> list[RecordFields] | str:
        """List the mails of a folder without their texts, latest first.

        Args:
            folder: inbox, archive, projects, sent or trash.
        """
        name = app_base.check_choice("folder", folder, MAIL_FOLDERS)
        return _latest_first([mail for mail in self.office.mails.values() if mail.folder == name])

    def mail_search(self, text: str = "", sender: str = "", folder: str = "") -> list[RecordFields] | str:
        """Find mails, latest first, shown without their texts.

        Args:
            text: Words that all must occur in subject or text.
            sender: Address of who sent it, or a part of it.
            folder: A folder; all of them if empty.
        """
        name = app_base.check_choice("folder", folder, MAIL_FOLDERS) if folder.strip() else ""
        part = sender.strip().lower()

        def is_wanted(mail: Mail) -> bool:
            return part in mail.sender and name in ("", mail.folder)

        return _latest_first(
            app_base.find_matching(self.office.mails, text, lambda mail: (mail.subject, mail.body), is_wanted)
        )

    def mail_read(self, mail_id: str) -> RecordFields:
        """Show a whole mail.

        Args:
            mail_id: Such as M1042.
        """
        return show_record(self._mail(mail_id))

    def mail_send(self, to: list[str], subject: str, body: str, files: list[str] | None = None) -> RecordFields:
        """Send a mail.

        Args:
            to: E-mail addresses.
            subject: Its subject.
            body: Its text.
            files: Paths of files to attach.
        """
        receivers = app_base.check_addresses(to)
        if not receivers:
            raise ToolError("to must hold at least one address.")
        for path in files or []:
            app_base.find(self.office.files, path, "file", "files_search")
        paths = tuple(dict.fromkeys(path.strip() for path in files or []))
        texts = app_base.check_text("subject", subject), app_base.check_text("body", body)
        return self._keep(sent_mail(self.office, receivers, *texts, files=paths))

    def mail_reply(self, mail_id: str, body: str) -> RecordFields:
        """Answer the sender of a mail.

        Args:
            mail_id: Such as M1042.
            body: The text of the answer.
        """
        mail = self._mail(mail_id)
        if mail.sender == self.office.owner.email:
            raise ToolError(f"{mail.id} is from yourself; use mail_send to write to somebody else.")
        return self._keep(reply_to(self.office, mail, app_base.check_text("body", body)))

    def mail_forward(self, mail_id: str, to: list[str], note: str = "") -> RecordFields:
        """Send a mail on to others.

        Args:
            mail_id: Such as M1042.
            to: E-mail addresses.
            note: What you want to add.
        """
        mail, receivers = self._mail(mail_id), app_base.check_addresses(to)
        if not receivers:
            raise ToolError("to must hold at least one address.")
        return self._keep(forward_of(self.office, mail, receivers, app_base.check_text("note", note, required=False)))

    def mail_move(self, mail_id: str, folder: str) -> RecordFields:
        """Move a mail to another folder; trash deletes it.

        Args:
            mail_id: Such as M1042.
            folder: inbox, archive, projects or trash.
        """
        mail = self._mail(mail_id)
        new = app_base.check_choice("folder", folder, tuple(name for name in MAIL_FOLDERS if name != "sent"))
        return self._keep(replace(mail, folder=new))

    def _mail(self, mail_id: str) -> Mail:
        return app_base.find(self.office.mails, mail_id, "mail", "mail_list")


def _latest_first(mails: list[Mail]) -> list[RecordFields] | str:
    return app_base.list_records(sorted(mails, key=lambda mail: mail.sent, reverse=True), "body", "answers")


def sent_mail(
    office: OfficeState, to: tuple[str, ...], subject: str, body: str, *, answers: str = "", files: tuple[str, ...] = ()
) -> Mail:
    """Return the mail that the owner sends now."""
    new = office.new_id("mails")
    return Mail(new, "sent", office.owner.email, to, subject, body, office.now, answers, files)


def reply_to(office: OfficeState, mail: Mail, body: str) -> Mail:
    """Return the answer to a mail."""
    return sent_mail(office, (mail.sender,), f"Re: {mail.subject}", body, answers=mail.id)


def forward_of(office: OfficeState, mail: Mail, to: tuple[str, ...], note: str = "") -> Mail:
    """Return a mail as it is sent on; its text is left to the original."""
    return sent_mail(office, to, f"Fwd: {mail.subject}", note, answers=mail.id, files=mail.files)
