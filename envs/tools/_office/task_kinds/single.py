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
    title, place = sampler.fresh(words.NEW_EVENTS), sampler.one(words.PLACES)
    start = sampler.one(sampler.free(day, minutes))
    at = f"{spoken_day(day)} at {start[11:]}"
    return TaskPlan(
        texts=words.request("create_event", title=title, at=at, minutes=minutes, place=place),
        goal=office.put(Event(office.new_id("events"), title, start, minutes, place)),
        reads=(),
        writes=(plan_call("calendar_create", title=title, start=start, minutes=minutes, place=place),),
    )


def cancel_event(sampler: OfficeSampler) -> TaskPlan:
    """Cancel an event."""
    event = sampler.event()
    on = spoken_day(event.start[:10])
    return TaskPlan(
        texts=words.request("cancel_event", event=event, on=on),
        goal=sampler.office.drop(event),
        reads=(plan_call("calendar_search", text=event.title),),
        writes=(plan_call("calendar_cancel", event_id=event.id),),
    )


def move_mail(sampler: OfficeSampler) -> TaskPlan:
    """Move a mail to a folder."""
    mail, folder = sampler.mail(), sampler.one(("archive", "projects", "trash"))
    name = next(who.name for who in sampler.office.contacts.values() if who.email == mail.sender)
    return TaskPlan(
        texts=words.request("move_mail", mail=mail, folder=folder, name=name),
        goal=sampler.office.put(replace(mail, folder=folder)),
        reads=(plan_call("mail_search", text=mail.subject),),
        writes=(plan_call("mail_move", mail_id=mail.id, folder=folder),),
    )


def reply_mail(sampler: OfficeSampler) -> TaskPlan:
    """Answer a mail."""
    mail, body = sampler.mail(), sampler.one(words.REPLIES)
    return TaskPlan(
        texts=words.request("reply_mail", mail=mail, body=body),
        goal=sampler.office.put(reply_to(sampler.office, mail, body)),
        reads=(plan_call("mail_search", text=mail.subject),),
        writes=(plan_call("mail_reply", mail_id=mail.id, body=body),),
    )


def set_priority(sampler: OfficeSampler) -> TaskPlan:
    """Set the priority of a ticket."""
    ticket = sampler.ticket("open", "in_progress")
    level = sampler.one([name for name in ("low", "high", "urgent") if name != ticket.priority])
    return TaskPlan(
        texts=words.request("set_priority", ticket=ticket, level=level),
        goal=sampler.office.put(replace(ticket, priority=level)),
        reads=(plan_call("tickets_search", text=ticket.title),),
        writes=(plan_call("tickets_set_priority", ticket_id=ticket.id, priority=level),),
    )


def comment_ticket(sampler: OfficeSampler) -> TaskPlan:
    """Comment on a ticket."""
    ticket, text = sampler.ticket("open", "in_progress", "resolved"), sampler.one(words.REPLIES)
    return TaskPlan(
        texts=words.request("comment_ticket", ticket=ticket, text=text),
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
        texts=words.request("move_file", name=name, folder=folder, target=target, file=file),
        goal=sampler.office.drop(file).put(moved),
        reads=(plan_call("files_list", folder=folder),),
        writes=(plan_call("files_move", path=file.path, new_path=moved.path),),
    )


def change_phone(sampler: OfficeSampler) -> TaskPlan:
    """Enter a new telephone number."""
    who = sampler.person()
    phone = sampler.phone("+49 40")
    return TaskPlan(
        texts=words.request("change_phone", who=who, phone=phone),
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
