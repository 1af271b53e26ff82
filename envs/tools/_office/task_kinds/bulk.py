"""Level 3: several changes, of things that a condition chooses or a table tells."""

from collections.abc import Sequence
from dataclasses import replace

from envgym.authoring.sampler import Unsuitable
from envgym.envs.tools._office import words
from envgym.envs.tools._office.mail import reply_to, sent_mail
from envgym.envs.tools._office.plans import TaskPlan, plan_call
from envgym.envs.tools._office.sampler import OfficeSampler, spoken_day
from envgym.envs.tools._office.state import FileFolder, SupportTicket

ITEMS = ("paper", "toner", "markers", "folders", "envelopes", "batteries", "cables", "staples", "labels", "notebooks")


def table(head: str, rows: Sequence[Sequence[object]]) -> str:
    """Write a table with commas."""
    return "\n".join([head, *(",".join(str(cell) for cell in row) for row in rows)])


def hand_over(sampler: OfficeSampler) -> TaskPlan:
    """Hand over all open tickets of somebody, with a comment."""
    old = sampler.who(sampler.ticket("open", is_assigned=True).assignee)
    tickets = [item for item in sampler.office.tickets.values() if item.assignee == old.email and item.status == "open"]
    new, text = sampler.person(), f"Handed over by {old.name}."
    if not 2 <= len(tickets) <= 4:
        raise Unsuitable
    changed = (replace(item, assignee=new.email, comments=(*item.comments, text)) for item in tickets)
    return TaskPlan(
        texts=words.request("hand_over", old=old, new=new, text=text),
        goal=sampler.office.put(*changed),
        reads=(
            plan_call("contacts_search", text=old.name),
            plan_call("contacts_search", text=new.name),
            plan_call("tickets_list", status="open", assignee=old.email),
        ),
        writes=tuple(
            step
            for item in tickets
            for step in (
                plan_call("tickets_assign", ticket_id=item.id, assignee=new.email),
                plan_call("tickets_comment", ticket_id=item.id, text=text),
            )
        ),
    )


def ticket_from_mail(sampler: OfficeSampler) -> TaskPlan:
    """Make a ticket of a mail, for the lead of a team, and answer with its number."""
    office, mail = sampler.office, sampler.mail()
    lead, level = sampler.person(is_lead=True), sampler.one(("high", "urgent"))
    new = SupportTicket(office.new_id("tickets"), mail.subject, "", "open", level, lead.email, "")
    text = f"This is now ticket {new.id}."
    return TaskPlan(
        texts=words.request("ticket_from_mail", mail=mail, level=level, lead=lead),
        goal=office.put(new).put(reply_to(office, mail, text)),
        reads=(plan_call("mail_search", text=mail.subject), plan_call("contacts_search", text=lead.title)),
        writes=(
            plan_call("tickets_create", title=mail.subject, priority=level, assignee=lead.email),
            plan_call("mail_reply", mail_id=mail.id, body=text),
        ),
    )


def expense_total(sampler: OfficeSampler) -> TaskPlan:
    """Add up what somebody spent, and mail the sum."""
    people = [sampler.person() for _ in range(4)]
    who, receiver = people[0], sampler.person()
    rows = [
        (
            sampler.past()[:10],
            item.name,
            sampler.one(("train", "hotel", "meal", "taxi")),
            int(sampler.rng.integers(8, 240)),
        )
        for item in [*people, *(sampler.one(people) for _ in range(7)), who]
    ]
    rows = sampler.some(rows, len(rows))
    file = sampler.add_file(f"/reports/expenses_{sampler.office.today[:7]}.csv", table("date,name,kind,amount", rows))
    total = sum(row[3] for row in rows if row[1] == who.name)
    subject = f"Expenses of {who.name}"
    return TaskPlan(
        texts=words.request("expense_total", who=who, file=file, receiver=receiver, subject=subject),
        goal=sampler.office.put(sent_mail(sampler.office, (receiver.email,), subject, str(total))),
        reads=(plan_call("files_read", path=file.path), plan_call("contacts_search", text=receiver.name)),
        writes=(plan_call("mail_send", to=[receiver.email], subject=subject, body=str(total)),),
    )


def clear_day(sampler: OfficeSampler) -> TaskPlan:
    """Cancel all events with somebody on a day, and say so by mail."""
    who, day = sampler.person(), sampler.one(sampler.days)
    title = sampler.new_event_title()
    sampler.add_event(title, day, 30, [who])
    today = [event for event in sampler.office.events.values() if event.start[:10] == day]
    events = [event for event in today if who.email in event.attendees]
    subject, body = "Cancelled", f"I have to cancel our meetings on {spoken_day(day)}."
    if not 1 <= len(events) <= 3 or len(events) == len(today):
        raise Unsuitable
    return TaskPlan(
        texts=words.request("clear_day", day=spoken_day(day), who=who, subject=subject, body=body),
        goal=sampler.office.drop(*events).put(sent_mail(sampler.office, (who.email,), subject, body)),
        reads=(
            plan_call("contacts_search", text=who.name),
            plan_call("calendar_list", first_day=day, last_day=day),
        ),
        writes=(
            *(plan_call("calendar_cancel", event_id=event.id) for event in events),
            plan_call("mail_send", to=[who.email], subject=subject, body=body),
        ),
    )


def archive_folder(sampler: OfficeSampler) -> TaskPlan:
    """Move all files of a folder into a new one."""
    folder = sampler.one([path for path in words.FOLDERS if path != "/archive"])
    files = [file for file in sampler.office.files.values() if file.path.startswith(f"{folder}/")]
    target = f"/archive/{folder[1:]}_{sampler.office.today[:4]}"
    if not 2 <= len(files) <= 4:
        raise Unsuitable
    moved = [replace(file, path=f"{target}/{file.path.rpartition('/')[2]}") for file in files]
    return TaskPlan(
        texts=words.request("archive_folder", target=target, folder=folder),
        goal=sampler.office.drop(*files).put(FileFolder(target), *moved),
        reads=(plan_call("files_list", folder=folder),),
        writes=(
            plan_call("files_create_folder", path=target),
            *(plan_call("files_move", path=a.path, new_path=b.path) for a, b in zip(files, moved, strict=True)),
        ),
    )


def reorder(sampler: OfficeSampler) -> TaskPlan:
    """Make a ticket for each item that runs low."""
    names = sampler.some(ITEMS, 6)
    minimum = sampler.rng.integers(10, 60, size=6)
    low = set(sampler.rng.choice(6, size=int(sampler.rng.integers(2, 4)), replace=False).tolist())
    rows = [
        (
            name,
            int(least - sampler.rng.integers(1, 9) if place in low else least + sampler.rng.integers(0, 30)),
            int(least),
        )
        for place, (name, least) in enumerate(zip(names, minimum, strict=True))
    ]
    file, who = sampler.add_file("/reports/stock.csv", table("item,in_stock,minimum", rows)), sampler.person()
    office, goal = sampler.office, sampler.office
    titles = [f"Reorder {name}" for name, stock, least in rows if stock < least]
    for title in titles:
        goal = goal.put(SupportTicket(goal.new_id("tickets"), title, "", "open", "normal", who.email, ""))
    assert goal != office, "two items at least run low"
    return TaskPlan(
        texts=words.request("reorder", file=file, who=who),
        goal=goal,
        reads=(plan_call("files_read", path=file.path), plan_call("contacts_search", text=who.name)),
        writes=tuple(
            plan_call("tickets_create", title=title, priority="normal", assignee=who.email) for title in titles
        ),
    )


def on_call(sampler: OfficeSampler) -> TaskPlan:
    """Give all tickets that nobody has to whoever is on call."""
    people = [sampler.person() for _ in range(5)]
    week = sampler.days[:5]
    rows = [(day, who.name) for day, who in zip(week, people, strict=True)]
    file = sampler.add_file("/plans/on_call.csv", table("day,name", rows))
    place = int(sampler.rng.integers(5))
    day, who = week[place], people[place]
    tickets = [item for item in sampler.office.tickets.values() if item.status == "open" and not item.assignee]
    if not 1 <= len(tickets) <= 4:
        raise Unsuitable
    body = str(len(tickets))
    return TaskPlan(
        texts=words.request("on_call", day=spoken_day(day), file=file),
        goal=sampler.office.put(*(replace(item, assignee=who.email) for item in tickets)).put(
            sent_mail(sampler.office, (who.email,), "New tickets", body)
        ),
        reads=(
            plan_call("files_read", path=file.path),
            plan_call("contacts_search", text=who.name),
            plan_call("tickets_list", status="open", assignee="none"),
        ),
        writes=(
            *(plan_call("tickets_assign", ticket_id=item.id, assignee=who.email) for item in tickets),
            plan_call("mail_send", to=[who.email], subject="New tickets", body=body),
        ),
    )


TASK_KINDS = (hand_over, ticket_from_mail, expense_total, clear_day, archive_folder, reorder, on_call)
