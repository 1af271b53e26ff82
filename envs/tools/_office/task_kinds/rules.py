"""Level 4: conditions, exceptions and sums over several apps."""

from collections import Counter
from dataclasses import replace

from envgym.authoring.sampler import Unsuitable
from envgym.envs.tools._office import words
from envgym.envs.tools._office.calendar import free_starts
from envgym.envs.tools._office.mail import sent_mail
from envgym.envs.tools._office.plans import TaskPlan, plan_call
from envgym.envs.tools._office.sampler import OfficeSampler, spoken_day
from envgym.envs.tools._office.state import Event, TextFile, minute_of, moment_at
from envgym.envs.tools._office.task_kinds.bulk import ITEMS, table


def team_meeting(sampler: OfficeSampler) -> TaskPlan:
    """Invite a team without those who are away, and share a file with the guests."""
    lead, day, minutes = sampler.person(is_lead=True), sampler.one(sampler.days), sampler.one((30, 60, 90))
    team = [who for who in sampler.office.contacts.values() if who.team == lead.team]
    away, back = sampler.some(team, 2)
    start, *_, end = sorted([day, *sampler.some(sampler.days, 2)])
    other = sampler.one([moment for moment in sampler.days if moment != day])
    rows = [(away.name, start, end), (back.name, other, other), (sampler.person(*team).name, start, end)]
    absences = sampler.add_file("/notes/absences.csv", table("name,first_day,last_day", sampler.some(rows, len(rows))))
    guests = tuple(who.email for who in team if who != away)
    title, file, start = sampler.fresh(words.NEW_EVENTS), sampler.file(), sampler.free(day, minutes)[0]
    office = sampler.office
    if any(email in file.shared for email in guests):
        raise Unsuitable
    new = Event(office.new_id("events"), title, start, minutes, "", guests)
    return TaskPlan(
        texts=(
            f'Schedule "{title}" with the {lead.team} team on {spoken_day(day)}: {minutes} minutes at my earliest free '
            "time between 9:00 and 17:00, on a full or half hour, no place. Invite everybody of that team in my "
            "contacts "
            f"except those who are away on that day according to {absences.path}. Share {file.path} with all you "
            f"invite.",
            f"I want to meet the {lead.team} team on {spoken_day(day)} at the first full or half hour from 9:00 on at "
            f'which I have {minutes} free minutes before 17:00. Call it "{title}" and leave the place empty. Whoever '
            f"is "
            f"listed in {absences.path} as away on that day is not invited. All guests need to be able to read "
            f"{file.path}.",
            f'Enter "{title}" ({minutes} minutes, no place) on {spoken_day(day)} as early as my calendar allows within '
            f"9:00 and 17:00, starting on a full or half hour. The guests are all my contacts in {lead.team} who are "
            f"not "
            f"away then; see {absences.path}. Then share {file.path} with each guest.",
        ),
        goal=office.put(new, replace(file, shared=(*file.shared, *guests))),
        reads=(
            plan_call("contacts_search", text=lead.team),
            plan_call("files_read", path=absences.path),
            plan_call("calendar_free", day=day, minutes=minutes),
        ),
        writes=(
            plan_call("calendar_create", title=title, start=start, minutes=minutes, attendees=[*guests]),
            *(plan_call("files_share", path=file.path, email=email) for email in guests),
        ),
    )


def new_numbers(sampler: OfficeSampler) -> TaskPlan:
    """Enter telephone numbers from mails, of which the latest counts."""
    people = [sampler.person() for _ in range(3)]
    latest: dict[str, tuple[str, str]] = {}
    for who in [*people, people[0]]:
        phone = f"+49 69 {sampler.rng.integers(1000, 10000)} {sampler.rng.integers(100, 1000)}"
        first, owner = who.name.split()[0], sampler.office.owner.name.split()[0]
        mail = sampler.add_mail(who, "New phone number", f"Hi {owner},\nmy phone number is now {phone}.\n{first}")
        latest[who.email] = max(latest.get(who.email, ("", "")), (mail.sent, phone))
    found = [mail for mail in sampler.office.mails.values() if mail.subject == "New phone number"]
    return TaskPlan(
        texts=(
            'Some colleagues sent me mails with the subject "New phone number". Update my contacts with the new '
            "numbers. "
            "Where somebody wrote twice, the later mail counts.",
            'Go through the mails "New phone number" in my inbox and change the phone numbers of the senders in my '
            "contacts. If there are several mails from one person, use the most recent one.",
            'My contacts are out of date. The mails in my inbox titled "New phone number" say what the numbers are '
            "now; "
            "please enter them. A newer mail replaces an older one from the same person.",
        ),
        goal=sampler.office.put(*(replace(who, phone=latest[who.email][1]) for who in people)),
        reads=(
            plan_call("mail_search", text="New phone number", folder="inbox"),
            *(plan_call("mail_read", mail_id=mail.id) for mail in found),
            *(plan_call("contacts_get", email=who.email) for who in people),
        ),
        writes=tuple(plan_call("contacts_change", contact_id=who.id, phone=latest[who.email][1]) for who in people),
    )


def overdue(sampler: OfficeSampler) -> TaskPlan:
    """Make tickets urgent that are due soon, and tell each assignee's manager how many there are."""
    limit = sampler.days[int(sampler.rng.integers(2, 5))]
    staff = [sampler.person(is_lead=False) for _ in range(2)]
    for _ in range(2):
        sampler.add_ticket(
            assignee=sampler.one(staff).email, due=sampler.one([day for day in sampler.days if day <= limit])
        )
    tickets = [
        item
        for item in sampler.office.tickets.values()
        if item.status in ("open", "in_progress") and item.assignee and item.due and item.due <= limit
    ]
    by_email = {who.email: who for who in sampler.office.contacts.values()}
    counts = Counter(by_email[item.assignee].manager for item in tickets)
    if len(tickets) > 4 or any(not by_email[item.assignee].manager for item in tickets):
        raise Unsuitable  # a lead has nobody above
    subject, office, goal = "Urgent tickets", sampler.office, sampler.office
    goal = goal.put(*(replace(item, priority="urgent") for item in tickets))
    for lead, count in counts.items():
        goal = goal.put(sent_mail(goal, (lead,), subject, str(count)))
    assert goal != office, "two tickets at least are due"
    return TaskPlan(
        texts=(
            f"Set every ticket to urgent that is open or in progress, has an assignee and is due by "
            f"{spoken_day(limit)} "
            f'at the latest. Then write to the manager of each assignee, one mail per manager: subject "{subject}", '
            f"and "
            "as the text only the number of these tickets in the manager's team.",
            f"Tickets that somebody has, that are open or in progress, and that are due on or before "
            f"{spoken_day(limit)}, "
            "become urgent. Each manager of the people who have them gets one mail with the subject "
            f'"{subject}" whose text is nothing but how many such tickets their people have.',
            f"Find the assigned tickets (open or in progress) with a due date up to and including {spoken_day(limit)}. "
            f'Their priority is urgent from now on. To each assignee\'s manager send a single mail, "{subject}", with '
            "just the count of these tickets among the people they manage.",
        ),
        goal=goal,
        reads=(
            plan_call("tickets_list", status="open"),
            plan_call("tickets_list", status="in_progress"),
            *(plan_call("contacts_get", email=email) for email in sorted({item.assignee for item in tickets})),
        ),
        writes=(
            *(
                plan_call("tickets_set_priority", ticket_id=item.id, priority="urgent")
                for item in tickets
                if item.priority != "urgent"
            ),
            *(plan_call("mail_send", to=[lead], subject=subject, body=str(count)) for lead, count in counts.items()),
        ),
    )


def order_total(sampler: OfficeSampler) -> TaskPlan:
    """Join prices with orders, write the total of a team into a file, and mail it to the lead."""
    lead = sampler.person(is_lead=True)
    items = sampler.some(ITEMS, 5)
    prices = {item: int(sampler.rng.integers(2, 25)) for item in items}
    teams = sorted({who.team for who in sampler.office.contacts.values() if who.team in words.TEAMS})
    orders = [(sampler.one(teams), sampler.one(items), int(sampler.rng.integers(1, 12))) for _ in range(8)]
    orders += [(lead.team, item, int(sampler.rng.integers(1, 12))) for item in sampler.some(items, 2)]
    orders = sampler.some(orders, len(orders))
    first = sampler.add_file("/reports/prices.csv", table("item,price", [*prices.items()]))
    second = sampler.add_file("/reports/orders.csv", table("team,item,quantity", orders))
    total = str(sum(prices[item] * quantity for team, item, quantity in orders if team == lead.team))
    path, subject = f"/reports/total_{lead.team.lower()}.txt", f"Orders of {lead.team}"
    office = sampler.office
    return TaskPlan(
        texts=(
            f"Work out what the orders of {lead.team} in {second.path} cost at the prices in {first.path}. Write the "
            f"total, only the number, into a new file {path}, and mail that file to the {lead.title}: subject "
            f'"{subject}", text again only the number.',
            f"{second.path} says what each team ordered, {first.path} what an item costs. Create {path} with nothing "
            f"but "
            f"the total for {lead.team} in it. Send it to the {lead.title} as an attachment; the subject is "
            f'"{subject}", '
            "the text is the total as well.",
            f"The {lead.title} asks what {lead.team} has to pay for the orders in {second.path}; prices are in "
            f'{first.path}. Save the number in the new file {path} and attach it to a mail, subject "{subject}", that '
            "says just that number.",
        ),
        goal=office.put(
            TextFile(path, total, office.today),
            sent_mail(office, (lead.email,), subject, total, files=(path,)),
        ),
        reads=(
            plan_call("files_read", path=second.path),
            plan_call("files_read", path=first.path),
            plan_call("contacts_search", text=lead.title),
        ),
        writes=(
            plan_call("files_create", path=path, content=total),
            plan_call("mail_send", to=[lead.email], subject=subject, body=total, files=[path]),
        ),
    )


def untangle(sampler: OfficeSampler) -> TaskPlan:
    """Move the shorter of two events that overlap, and tell its guests."""
    long = sampler.event()
    day = long.start[:10]
    title = sampler.fresh(
        [title for title in words.EVENTS if all(title != e.title for e in sampler.office.events.values())]
    )
    guests = [sampler.person(), sampler.person()]
    if long.minutes < 60:
        raise Unsuitable
    start = moment_at(day, minute_of(long.start) + long.minutes - 30)
    short = Event(sampler.number("E"), title, start, 30, sampler.one(words.PLACES), tuple(who.email for who in guests))
    others = sampler.office.drop(long)
    if start not in free_starts(others, day, 30):
        raise Unsuitable
    sampler.add(short)
    later = [moment for moment in free_starts(sampler.office, day, 30) if moment > long.start]
    new = sampler.one(later[:1])
    subject, body = f"{title} is moved", f"It now begins at {new[11:]}."
    mail = sent_mail(sampler.office, short.attendees, subject, body)
    return TaskPlan(
        texts=(
            f"Two events on {spoken_day(day)} overlap. Move the shorter one to the first time after the longer one "
            f"when I "
            f"am free for it (before 17:00, on a full or half hour), and send its attendees one mail together: subject "
            '"TITLE is moved" and text "It now begins at HH:MM.", with its title and its new time.',
            f"On {spoken_day(day)} I am double-booked. The shorter of the two events has to go to the next free slot "
            f"later "
            "that day that is long enough, starting on a full or half hour and over by 17:00. Write one mail to all "
            "its "
            'attendees, with the subject "TITLE is moved" and the text "It now begins at HH:MM.", filled in.',
            f"There is a conflict in my calendar on {spoken_day(day)}. Keep the longer event; let the shorter one "
            f"begin at "
            "the earliest full or half hour after it that is free long enough (until 17:00). Then tell everybody "
            "invited "
            'to the moved event in a single mail: "TITLE is moved" is the subject, "It now begins at HH:MM." the text, '
            "with its title and new time.",
        ),
        goal=sampler.office.put(replace(short, start=new), mail),
        reads=(
            plan_call("calendar_list", first_day=day, last_day=day),
            plan_call("calendar_free", day=day, minutes=30),
        ),
        writes=(
            plan_call("calendar_move", event_id=short.id, start=new),
            plan_call("mail_send", to=[*short.attendees], subject=subject, body=body),
        ),
    )


def farewell(sampler: OfficeSampler) -> TaskPlan:
    """Somebody leaves: tickets to the manager, off all events and files, out of the contacts."""
    who = sampler.person(is_lead=False)
    manager = sampler.who(who.manager)
    office = sampler.office
    tickets = [item for item in office.tickets.values() if item.assignee == who.email and item.status != "closed"]
    events = [item for item in office.events.values() if who.email in item.attendees]
    files = [item for item in office.files.values() if who.email in item.shared]
    if not tickets or not events or not 3 <= len(tickets) + len(events) + len(files) <= 8:
        raise Unsuitable
    goal = office.drop(who).put(
        *(replace(item, assignee=manager.email) for item in tickets),
        *(replace(item, attendees=_without(item.attendees, who.email)) for item in events),
        *(replace(item, shared=_without(item.shared, who.email)) for item in files),
    )
    return TaskPlan(
        texts=(
            f"{who.name} leaves the company. Give all their tickets that are not closed to their manager, take them "
            f"off "
            "every event in my calendar, stop sharing files with them, and delete them from my contacts.",
            f"Please remove {who.name}, who is leaving: the manager takes over all tickets except closed ones; no "
            f"event "
            "and no shared file should list them any more; and finally the contact goes.",
            f"{who.name} does not work here any longer. Uninvite them from all my events, unshare all files from them, "
            "reassign every ticket of theirs that is not closed to the person who was their manager, and remove them "
            "from the contacts.",
        ),
        goal=goal,
        reads=(
            plan_call("contacts_search", text=who.name),
            plan_call("tickets_list", assignee=who.email),
            plan_call("calendar_search", text=who.email),
            plan_call("files_list"),
        ),
        writes=(
            *(plan_call("tickets_assign", ticket_id=item.id, assignee=manager.email) for item in tickets),
            *(plan_call("calendar_uninvite", event_id=item.id, email=who.email) for item in events),
            *(plan_call("files_unshare", path=item.path, email=who.email) for item in files),
            plan_call("contacts_delete", contact_id=who.id),
        ),
    )


def _without(emails: tuple[str, ...], email: str) -> tuple[str, ...]:
    return tuple(other for other in emails if other != email)


TASK_KINDS = (team_meeting, new_numbers, overdue, order_total, untangle, farewell)
