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
        texts=words.request(
            "team_meeting", title=title, lead=lead, day=spoken_day(day), minutes=minutes, absences=absences, file=file
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
        phone = sampler.phone("+49 69")
        first, owner = who.name.split()[0], sampler.office.owner.name.split()[0]
        mail = sampler.add_mail(who, "New phone number", f"Hi {owner},\nmy phone number is now {phone}.\n{first}")
        latest[who.email] = max(latest.get(who.email, ("", "")), (mail.sent, phone))
    mails = [mail for mail in sampler.office.mails.values() if mail.subject == "New phone number"]
    return TaskPlan(
        texts=words.request("new_numbers"),
        goal=sampler.office.put(*(replace(who, phone=latest[who.email][1]) for who in people)),
        reads=(
            plan_call("mail_search", text="New phone number", folder="inbox"),
            *(plan_call("mail_read", mail_id=mail.id) for mail in mails),
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
        texts=words.request("overdue", limit=spoken_day(limit), subject=subject),
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
        texts=words.request("order_total", lead=lead, second=second, first=first, path=path, subject=subject),
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
    title = sampler.new_event_title()
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
        texts=words.request("untangle", day=spoken_day(day)),
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
        texts=words.request("farewell", who=who),
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
