"""Level 2: what one app tells is needed in another; one change or a few."""

from dataclasses import replace

from envgym.authoring.sampler import Unsuitable
from envgym.envs.tools._office import words
from envgym.envs.tools._office.calendar import end_of, free_starts
from envgym.envs.tools._office.mail import forward_of
from envgym.envs.tools._office.plans import TaskPlan, plan_call
from envgym.envs.tools._office.sampler import OfficeSampler, spoken_day
from envgym.envs.tools._office.state import Contact, Event


def invite_assignee(sampler: OfficeSampler) -> TaskPlan:
    """Invite whoever has a ticket to an event."""
    ticket, event = sampler.ticket("open", "in_progress", is_assigned=True), sampler.event()
    if ticket.assignee in event.attendees:
        raise Unsuitable
    return TaskPlan(
        texts=words.request("invite_assignee", ticket=ticket, event=event),
        goal=sampler.office.put(replace(event, attendees=(*event.attendees, ticket.assignee))),
        reads=(plan_call("tickets_search", text=ticket.title), plan_call("calendar_search", text=event.title)),
        writes=(plan_call("calendar_invite", event_id=event.id, email=ticket.assignee),),
    )


def share_with_attendees(sampler: OfficeSampler) -> TaskPlan:
    """Share a file with the guests of an event."""
    file, event = sampler.file(), sampler.event()
    missing = [email for email in event.attendees if email not in file.shared]
    if not missing:
        raise Unsuitable
    return TaskPlan(
        texts=words.request("share_with_attendees", file=file, event=event),
        goal=sampler.office.put(replace(file, shared=(*file.shared, *missing))),
        reads=(plan_call("calendar_search", text=event.title), plan_call("files_read", path=file.path)),
        writes=tuple(plan_call("files_share", path=file.path, email=email) for email in missing),
    )


def assign_to_manager(sampler: OfficeSampler) -> TaskPlan:
    """Hand a ticket to its assignee's manager."""
    ticket = sampler.ticket("open", "in_progress", is_assigned=True)
    who = sampler.who(ticket.assignee)
    manager = sampler.who(who.manager)
    return TaskPlan(
        texts=words.request("assign_to_manager", ticket=ticket, who=who),
        goal=sampler.office.put(replace(ticket, assignee=manager.email)),
        reads=(plan_call("tickets_search", text=ticket.title), plan_call("contacts_get", email=who.email)),
        writes=(plan_call("tickets_assign", ticket_id=ticket.id, assignee=manager.email),),
    )


def meet_when_free(sampler: OfficeSampler) -> TaskPlan:
    """Enter an event with a guest at the first free time of a day."""
    office, who, day = sampler.office, sampler.person(), sampler.one(sampler.days)
    title, minutes = sampler.fresh(words.NEW_EVENTS), sampler.one((30, 60, 90, 120))
    start = sampler.free(day, minutes)[0]
    if start.endswith("09:00") and sampler.rng.integers(4):
        raise Unsuitable  # mostly, one has to look
    new = Event(office.new_id("events"), title, start, minutes, "", (who.email,))
    return TaskPlan(
        texts=words.request("meet_when_free", title=title, who=who, day=spoken_day(day), minutes=minutes),
        goal=office.put(new),
        reads=(
            plan_call("contacts_search", text=who.name),
            plan_call("calendar_free", day=day, minutes=minutes),
        ),
        writes=(plan_call("calendar_create", title=title, start=start, minutes=minutes, attendees=[who.email]),),
    )


def forward_latest(sampler: OfficeSampler) -> TaskPlan:
    """Forward the latest mail of somebody to somebody's manager."""
    writer = sampler.who(sampler.mail().sender)
    mails = [mail for mail in sampler.office.mails.values() if mail.sender == writer.email and mail.folder == "inbox"]
    mail = max(mails, key=lambda mail: mail.sent)
    colleague, note = sampler.person(is_lead=False), sampler.one(words.NOTES)
    manager = sampler.who(colleague.manager)
    if manager == writer:
        raise Unsuitable
    return TaskPlan(
        texts=words.request("forward_latest", writer=writer, colleague=colleague, note=note),
        goal=sampler.office.put(forward_of(sampler.office, mail, (manager.email,), note)),
        reads=(
            plan_call("mail_search", sender=writer.email, folder="inbox"),
            plan_call("contacts_search", text=colleague.name),
        ),
        writes=(plan_call("mail_forward", mail_id=mail.id, to=[manager.email], note=note),),
    )


def add_contact(sampler: OfficeSampler) -> TaskPlan:
    """Enter a person whom a mail introduces."""
    names = {part for who in sampler.office.contacts.values() for part in who.name.split()}
    first = sampler.one([name for name in words.FIRST_NAMES if name not in names])
    last = sampler.one([name for name in words.LAST_NAMES if name not in names])
    company, writer = sampler.one(words.PARTNERS), sampler.person()
    email = f"{first}.{last}@{company.split()[0]}.example".lower()
    phone = sampler.phone("+49 89")
    body = (
        f"Hi {sampler.office.owner.name.split()[0]},\nfrom next month on, {first} {last} looks after us at {company}. "
        f"The number is {phone}, the address {email}.\n{writer.name}"
    )
    mail = sampler.add_mail(writer, f"New at {company}", body)
    new = Contact(sampler.office.new_id("contacts"), f"{first} {last}", email, phone, company, "", "")
    return TaskPlan(
        texts=words.request("add_contact", writer=writer, company=company, mail=mail),
        goal=sampler.office.put(new),
        reads=(plan_call("mail_search", text=mail.subject), plan_call("mail_read", mail_id=mail.id)),
        writes=(plan_call("contacts_add", name=new.name, email=email, phone=phone, team=company),),
    )


def move_behind(sampler: OfficeSampler) -> TaskPlan:
    """Move an event to the end of another."""
    first, second = sampler.event(), sampler.event()
    start = end_of(first)
    if start not in free_starts(sampler.office.drop(second), start[:10], second.minutes) or start == second.start:
        raise Unsuitable
    return TaskPlan(
        texts=words.request("move_behind", second=second, first=first),
        goal=sampler.office.put(replace(second, start=start)),
        reads=(plan_call("calendar_search", text=first.title), plan_call("calendar_search", text=second.title)),
        writes=(plan_call("calendar_move", event_id=second.id, start=start),),
    )


def close_ticket(sampler: OfficeSampler) -> TaskPlan:
    """Close a ticket, which has to be resolved first, with a comment."""
    ticket = sampler.ticket("open", "in_progress", is_assigned=True)
    text = sampler.one(("Fixed and tested.", "Solved by a restart.", "The part was replaced."))
    return TaskPlan(
        texts=words.request("close_ticket", ticket=ticket, text=text),
        goal=sampler.office.put(replace(ticket, status="closed", comments=(*ticket.comments, text))),
        reads=(plan_call("tickets_search", text=ticket.title),),
        writes=(
            plan_call("tickets_comment", ticket_id=ticket.id, text=text),
            plan_call("tickets_set_status", ticket_id=ticket.id, status="resolved"),
            plan_call("tickets_set_status", ticket_id=ticket.id, status="closed"),
        ),
    )


TASK_KINDS = (
    invite_assignee,
    share_with_attendees,
    assign_to_manager,
    meet_when_free,
    forward_latest,
    add_contact,
    move_behind,
    close_ticket,
)
