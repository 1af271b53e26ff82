"""Level 1: one change in one app, of something that is called by its name."""

from dataclasses import replace

from envgym.envs.tools._office import words
from envgym.envs.tools._office.mail import reply_to
from envgym.envs.tools._office.plans import TaskPlan, plan_call
from envgym.envs.tools._office.sampler import OfficeSampler, spoken_day
from envgym.envs.tools._office.state import Event


def create_event(sampler: OfficeSampler) -> TaskPlan:
    """Enter an event without guests."""
    office, day, minutes = sampler.office, sampler.one(sampler.days), sampler.one((30, 45, 60))
    title, place, start = (
        sampler.fresh(words.NEW_EVENTS),
        sampler.one(words.PLACES),
        sampler.one(sampler.free(day, minutes)),
    )
    at = f"{spoken_day(day)} at {start[11:]}"
    return TaskPlan(
        texts=(
            f'Put "{title}" into my calendar for {at}. It takes {minutes} minutes and is in {place}.',
            f'I need an entry "{title}" in my calendar: {at}, {minutes} minutes, {place}. Nobody else is invited.',
            f'Please block {minutes} minutes on {at} for "{title}", with {place} as the place.',
        ),
        goal=office.put(Event(office.new_id("events"), title, start, minutes, place)),
        reads=(),
        writes=(plan_call("calendar_create", title=title, start=start, minutes=minutes, place=place),),
    )


def cancel_event(sampler: OfficeSampler) -> TaskPlan:
    """Cancel an event."""
    event = sampler.event()
    on = spoken_day(event.start[:10])
    return TaskPlan(
        texts=(
            f'Cancel the event "{event.title}".',
            f'"{event.title}" on {on} does not take place. Take it off my calendar.',
            f"I cannot make it on {on}: please cancel {event.title}.",
        ),
        goal=sampler.office.drop(event),
        reads=(plan_call("calendar_search", text=event.title),),
        writes=(plan_call("calendar_cancel", event_id=event.id),),
    )


def move_mail(sampler: OfficeSampler) -> TaskPlan:
    """Move a mail to a folder."""
    mail, folder = sampler.mail(), sampler.one(("archive", "projects", "trash"))
    name = next(who.name for who in sampler.office.contacts.values() if who.email == mail.sender)
    return TaskPlan(
        texts=(
            f'Move the mail "{mail.subject}" from my inbox to {folder}.',
            f'The mail from {name} with the subject "{mail.subject}" belongs into the folder {folder}. Put it there.',
            f'I am done with "{mail.subject}" by {name}; please file that mail under {folder}.',
        ),
        goal=sampler.office.put(replace(mail, folder=folder)),
        reads=(plan_call("mail_search", text=mail.subject),),
        writes=(plan_call("mail_move", mail_id=mail.id, folder=folder),),
    )


def reply_mail(sampler: OfficeSampler) -> TaskPlan:
    """Answer a mail."""
    mail, body = sampler.mail(), sampler.one(words.REPLIES)
    return TaskPlan(
        texts=(
            f'Reply to the mail "{mail.subject}" with exactly this text: "{body}"',
            f'Please answer "{mail.subject}". Write only: "{body}"',
            f'The mail with the subject "{mail.subject}" needs a reply from me. It should say "{body}" and nothing '
            f"else.",
        ),
        goal=sampler.office.put(reply_to(sampler.office, mail, body)),
        reads=(plan_call("mail_search", text=mail.subject),),
        writes=(plan_call("mail_reply", mail_id=mail.id, body=body),),
    )


def set_priority(sampler: OfficeSampler) -> TaskPlan:
    """Set the priority of a ticket."""
    ticket = sampler.ticket("open", "in_progress")
    level = sampler.one([name for name in ("low", "high", "urgent") if name != ticket.priority])
    return TaskPlan(
        texts=(
            f'Set the priority of the ticket "{ticket.title}" to {level}.',
            f'The ticket "{ticket.title}" should have the priority {level}. Please change that.',
            f'Change the ticket "{ticket.title}" from {ticket.priority} to {level} priority.',
        ),
        goal=sampler.office.put(replace(ticket, priority=level)),
        reads=(plan_call("tickets_search", text=ticket.title),),
        writes=(plan_call("tickets_set_priority", ticket_id=ticket.id, priority=level),),
    )


def comment_ticket(sampler: OfficeSampler) -> TaskPlan:
    """Comment on a ticket."""
    ticket, text = sampler.ticket("open", "in_progress", "resolved"), sampler.one(words.REPLIES)
    return TaskPlan(
        texts=(
            f'Add this comment to the ticket "{ticket.title}": "{text}"',
            f'Please comment on the ticket "{ticket.title}" with the words "{text}"',
            f'Under the ticket "{ticket.title}" there should be a comment that says "{text}" Write it, please.',
        ),
        goal=sampler.office.put(replace(ticket, comments=(*ticket.comments, text))),
        reads=(plan_call("tickets_search", text=ticket.title),),
        writes=(plan_call("tickets_comment", ticket_id=ticket.id, text=text),),
    )


def move_file(sampler: OfficeSampler) -> TaskPlan:
    """Move a file to another folder."""
    file = sampler.file()
    folder, _, name = file.path.rpartition("/")
    target = sampler.one([other for other in words.FOLDERS if other != folder])
    moved = replace(file, path=f"{target}/{name}")
    return TaskPlan(
        texts=(
            f"Move the file {name} from {folder} to {target}.",
            f"The file {file.path} is in the wrong place. Put it into {target}; its name stays.",
            f"Please put {name}, which is in {folder} now, into the folder {target}.",
        ),
        goal=sampler.office.drop(file).put(moved),
        reads=(plan_call("files_list", folder=folder),),
        writes=(plan_call("files_move", path=file.path, new_path=moved.path),),
    )


def change_phone(sampler: OfficeSampler) -> TaskPlan:
    """Enter a new telephone number."""
    who = sampler.person()
    phone = f"+49 40 {sampler.rng.integers(1000, 10000)} {sampler.rng.integers(100, 1000)}"
    return TaskPlan(
        texts=(
            f"{who.name} has a new phone number: {phone}. Update the contact.",
            f"Change the phone number of {who.name} in my contacts to {phone}.",
            f"Please enter {phone} as the new number of {who.name}.",
        ),
        goal=sampler.office.put(replace(who, phone=phone)),
        reads=(plan_call("contacts_search", text=who.name),),
        writes=(plan_call("contacts_change", contact_id=who.id, phone=phone),),
    )


TASK_KINDS = (
    create_event,
    cancel_event,
    move_mail,
    reply_mail,
    set_priority,
    comment_ticket,
    move_file,
    change_phone,
)
