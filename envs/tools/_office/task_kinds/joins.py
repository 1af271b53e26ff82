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
        texts=(
            f'Invite the person who has the ticket "{ticket.title}" to "{event.title}".',
            f'Whoever is assigned to the ticket "{ticket.title}" should join the event "{event.title}". Add them.',
            f'For "{event.title}" we also need the assignee of the ticket "{ticket.title}". Please invite them.',
        ),
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
        texts=(
            f'Share {file.path} with everybody who attends "{event.title}".',
            f'All attendees of "{event.title}" need to be able to read {file.path}. Please see to it.',
            f'Make sure that the file {file.path} is shared with each attendee of the event "{event.title}".',
        ),
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
        texts=(
            f'Assign the ticket "{ticket.title}" to the manager of the person who has it now.',
            f'{who.name} cannot work on "{ticket.title}". Give that ticket to their manager.',
            f'The ticket "{ticket.title}" must be escalated: its new assignee is the manager of its current one.',
        ),
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
        texts=(
            f'Schedule "{title}" with {who.name} on {spoken_day(day)}, at the earliest time when I am free for '
            f"{minutes} minutes. Working hours are 9:00 to 17:00; begin on a full or half hour. No place is needed.",
            f"Find the first free {minutes} minutes in my calendar on {spoken_day(day)} (9:00 to 17:00, starting on a "
            f'full or half hour), and enter "{title}" there, without a place, with {who.name} as the only guest.',
            f'I want to meet {who.name} for "{title}", {minutes} minutes, on {spoken_day(day)}. Take the earliest slot '
            "between 9:00 and 17:00, on a full or half hour, in which I have nothing else. Leave the place empty.",
        ),
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
        texts=(
            f"Forward the latest mail from {writer.name} in my inbox to the manager of {colleague.name}. Add the note "
            f'"{note}"',
            f'Look up who the manager of {colleague.name} is, and send on to them, with the note "{note}", the most '
            f"recent mail that I have in my inbox from {writer.name}.",
            f"The manager of {colleague.name} should see the newest mail from {writer.name} in my inbox. Please "
            f'forward it; the note is "{note}"',
        ),
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
    phone = f"+49 89 {sampler.rng.integers(1000, 10000)} {sampler.rng.integers(100, 1000)}"
    body = (
        f"Hi {sampler.office.owner.name.split()[0]},\nfrom next month on, {first} {last} looks after us at {company}. "
        f"The number is {phone}, the address {email}.\n{writer.name}"
    )
    mail = sampler.add_mail(writer, f"New at {company}", body)
    new = Contact(sampler.office.new_id("contacts"), f"{first} {last}", email, phone, company, "", "")
    return TaskPlan(
        texts=(
            f"{writer.name} wrote me about somebody new at {company}. Add that person to my contacts, with name, "
            f"e-mail "
            f"address, phone number, and {company} as the team.",
            f'In the mail "{mail.subject}" there are the details of a new person. Enter name, address and phone into '
            f"my "
            f"contacts. The team is {company}; leave the title empty.",
            f"I need our new person at {company} in my contacts (team: {company}). Everything you need is in a mail by "
            f"{writer.name}: full name, e-mail and phone.",
        ),
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
        texts=(
            f'Move "{second.title}" so that it begins right when "{first.title}" ends.',
            f'"{second.title}" should follow directly after "{first.title}", on the same day. Please move it.',
            f'I would like to have "{second.title}" immediately after "{first.title}" is over. Change its time.',
        ),
        goal=sampler.office.put(replace(second, start=start)),
        reads=(plan_call("calendar_search", text=first.title), plan_call("calendar_search", text=second.title)),
        writes=(plan_call("calendar_move", event_id=second.id, start=start),),
    )


def close_ticket(sampler: OfficeSampler) -> TaskPlan:
    """Close a ticket, which has to be resolved first, with a comment."""
    ticket = sampler.ticket("open", "in_progress", is_assigned=True)
    text = sampler.one(("Fixed and tested.", "Solved by a restart.", "The part was replaced."))
    return TaskPlan(
        texts=(
            f'The problem behind the ticket "{ticket.title}" is solved. Comment "{text}" and close the ticket.',
            f'Please close the ticket "{ticket.title}" and leave the comment "{text}"',
            f'"{ticket.title}" is done: the ticket should be closed, with "{text}" as a comment.',
        ),
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
