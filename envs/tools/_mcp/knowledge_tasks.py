"""Tasks on the server `knowledge`."""

from collections.abc import Mapping, Sequence

from envgym.envs.tools._mcp.plans import McpTaskPlan
from envgym.envs.tools._mcp.sampling import WORDS, ServerSampler, TaskKind, request, suitable
from envgym.envs.tools._mcp.servers.protocol import Json, Tables
from envgym.envs.tools._office.plans import PlannedCall, plan_call

NUM_PAGES = 12
OWNER, PORT, REVIEW = 1, 2, 3
"""Numbers of the lines with the owner, the port and the review."""


def _pages(draws: ServerSampler) -> dict[str, Json]:
    owners, pages = draws.people(4), dict[str, Json]()
    ports = iter(draws.some(range(2000, 9000), NUM_PAGES))
    for service in draws.some(WORDS["services"], NUM_PAGES):
        lines = [f"Owner: {draws.one(owners)}", f"Port: {next(ports)}", f"Review: {draws.one(('done', 'due'))}"]
        section = draws.one(WORDS["sections"])
        pages[service] = {"title": service, "section": section, "lines": [*lines, draws.one(WORDS["remarks"])]}
    draws.tables = {"pages": pages}
    return pages


def _edit(goal: Tables, title: str, number: int, line: str) -> list[PlannedCall]:
    goal["pages"][title]["lines"][number - 1] = line
    return [
        plan_call("start_draft", title=title),
        plan_call("replace_line", number=number, line=line),
        plan_call("publish"),
    ]


def add_line(draws: ServerSampler) -> McpTaskPlan:
    """Add a line to a page that is named."""
    pages = _pages(draws)
    title, goal = draws.one(list(pages)), draws.goal()
    line = draws.one([item for item in WORDS["remarks"] if item not in pages[title]["lines"]])
    goal["pages"][title]["lines"].append(line)
    return McpTaskPlan(
        texts=request("add_line", line=line, title=title),
        goal=goal,
        calls=(plan_call("start_draft", title=title), plan_call("add_line", line=line), plan_call("publish")),
    )


def change_section(draws: ServerSampler) -> McpTaskPlan:
    """Put a page that is named into another section."""
    pages = _pages(draws)
    title, goal = draws.one(list(pages)), draws.goal()
    others = {page["section"] for name, page in pages.items() if name != title} - {pages[title]["section"]}
    section = draws.one(sorted(others))
    goal["pages"][title]["section"] = section
    return McpTaskPlan(
        texts=request("change_section", title=title, section=section),
        goal=goal,
        calls=(
            plan_call("read_page", title=title),
            plan_call("start_draft", title=title),
            plan_call("set_section", section=section),
            plan_call("publish"),
        ),
    )


def change_owner(draws: ServerSampler) -> McpTaskPlan:
    """Name the new owner on the page that has a port."""
    pages = _pages(draws)
    title, goal = draws.one(list(pages)), draws.goal()
    port = pages[title]["lines"][PORT - 1]
    owner = draws.one([item for item in draws.people(5) if f"Owner: {item}" != pages[title]["lines"][OWNER - 1]])
    return McpTaskPlan(
        texts=request("change_owner", port=port, owner=owner),
        goal=goal,
        calls=(plan_call("search_pages", text=port), *_edit(goal, title, OWNER, f"Owner: {owner}")),
    )


def copy_port(draws: ServerSampler) -> McpTaskPlan:
    """Let a page have the port of another one."""
    pages = _pages(draws)
    source, title = draws.some(list(pages), 2)
    line, goal = pages[source]["lines"][PORT - 1], draws.goal()
    return McpTaskPlan(
        texts=request("copy_port", title=title, source=source),
        goal=goal,
        calls=(plan_call("read_page", title=source), *_edit(goal, title, PORT, line)),
    )


def hand_over(draws: ServerSampler) -> McpTaskPlan:
    """Name a new owner on all pages of another one."""
    pages = _pages(draws)
    line, goal = pages[draws.one(list(pages))]["lines"][OWNER - 1], draws.goal()
    own = sorted(title for title, page in pages.items() if page["lines"][OWNER - 1] == line)
    suitable(2 <= len(own) <= 4)
    old = line.removeprefix("Owner: ")
    new = draws.one([name for name in draws.people(5) if name not in {page["lines"][0][7:] for page in pages.values()}])
    edits = [call for title in own for call in _edit(goal, title, OWNER, f"Owner: {new}")]
    return McpTaskPlan(
        texts=request("hand_over", new=new, old=old),
        goal=goal,
        calls=(plan_call("search_pages", text=line), *edits),
    )


def archive_due(draws: ServerSampler) -> McpTaskPlan:
    """Put the pages of a section whose review is due into the archive, as reviewed."""
    pages = _pages(draws)
    section, goal = draws.one([item for item in WORDS["sections"] if item != "archive"]), draws.goal()
    inside = sorted(title for title, page in pages.items() if page["section"] == section)
    due = [title for title in inside if pages[title]["lines"][REVIEW - 1] == "Review: due"]
    suitable(1 <= len(due) <= 3 and len(due) < len(inside))
    suitable(any(page["section"] == "archive" for page in pages.values()))
    calls = [plan_call("list_pages", section=section), plan_call("search_pages", text="Review: due")]
    for title in due:
        edit = _edit(goal, title, REVIEW, "Review: done")
        goal["pages"][title]["section"] = "archive"
        calls += [*edit[:2], plan_call("set_section", section="archive"), edit[2]]
    return McpTaskPlan(
        texts=request("archive_due", section=section),
        goal=goal,
        calls=tuple(calls),
    )


TASK_KINDS: Mapping[int, Sequence[TaskKind]] = {
    1: (add_line, change_section),
    2: (change_owner, copy_port),
    3: (hand_over, archive_due),
}
