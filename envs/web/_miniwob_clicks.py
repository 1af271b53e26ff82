"""Links, buttons, boxes, tabs and menus: the solutions that mostly click."""

import re
from collections.abc import Mapping

from envgym.envs.web._miniwob_solving import (
    FIELDS,
    ElementMissing,
    Oracle,
    all_then_submit,
    check,
    click,
    click_in_turn,
    click_quoted,
    every,
    fill,
    first,
    found_in,
    hover,
    leading,
    link_quoted,
    number_of,
    open_until,
    quoted_in,
    submit,
    undone,
)
from envgym.envs.web._miniwob_view import PageElement, PageView


def _wanted_boxes(task: str) -> list[str]:
    names = found_in(r"Select (.*) and click Submit", task)
    return [] if names == "nothing" else names.split(", ")


def _widget(view: PageView) -> str:
    kind = quoted_in(view.task)[0]
    is_long = kind == "textarea"
    role = "textbox" if kind in ("text", "textarea") else kind
    return click(leading(node for node in every(view, role) if node.multiline == is_long))


def _menu(view: PageView) -> str:
    *parents, last = found_in(r"Select (.*)", view.task).split(">")
    for name in [last, *reversed(parents)]:
        for node in every(view, name=name):
            return click(node) if name == last else hover(node)
    raise ElementMissing(view.task)


def _after_delay(view: PageView) -> str:
    """Click, let one second less than asked pass with other actions, click: each action takes a second."""
    waits = int(found_in(r"wait (\d+)", view.task)) - 1
    steps = [click(first(view, name="ONE")), *[hover(first(view, name="ONE"))] * waits, click(first(view, name="TWO"))]
    return steps[len(view.past)]


def _ticket(view: PageView) -> str:
    """Take the offer with the least or the most of what counts."""
    is_price = "cost" in view.task
    offers: list[tuple[int, PageElement]] = []
    minutes = 0
    for node in view.nodes:
        if match := re.fullmatch(r"(\d+)h (\d+)m", node.name):
            minutes = 60 * int(match[1]) + int(match[2])
        elif match := re.fullmatch(r"Book for \$(\d+)", node.name):
            offers.append((int(match[1]) if is_price else minutes, node))
    best = min if re.search("cheapest|shortest", view.task) else max
    return click(best(offers, key=lambda offer: offer[0])[1])


def _folder(view: PageView) -> str:
    for node in every(view, name=quoted_in(view.task)[0]):
        return click(node)
    folders = [click(node) for node in every(view, "clickable") if "hitarea" not in node.name]
    return undone(view, folders) or submit(view)


def _contact(view: PageView) -> str:
    name, what = re.findall(r"Find (\w+) in the contact book and click on their (\w+)", view.task)[0]
    if first(view, "heading").name != name:
        return click(first(view, "link", name=">"))
    return click(every(view, "link")[("phone", "email", "address").index(what)])


def _search(view: PageView) -> str:
    """Search, turn to the page, take the nth result: there are three on each."""
    field, query = first(view, *FIELDS), quoted_in(view.task)[0]
    if field.value != query:
        return fill(field, query)
    links = every(view, "link")
    if not links:
        return submit(view, "Search")
    page, place = divmod(number_of(view.task) - 1, 3)
    if page and len(view.past) == 2:
        return click(first(view, "link", name=str(page + 1)))
    return click([link for link in links if not re.fullmatch(r"\d+|[<>]", link.name)][place])


def _agreement(view: PageView) -> str:
    name, *button = quoted_in(view.task) or [""]
    long, *field = every(view, "textbox")
    at, end = long.scrolled or (0, 0)
    if name and at < end - 1:
        return f"scroll {long.id} by {end}"
    if name and field[0].value != name:
        return fill(field[0], name)
    return click(first(view, "button", name=button[0] if button else "Cancel"))


_quoted = click_quoted()
_tabs = open_until(link_quoted, "tab")

CLICKS: Mapping[str, Oracle] = {
    "button-delay": _after_delay,
    "buy-ticket": _ticket,
    "click-button": click_quoted("button"),
    "click-button-sequence": click_in_turn("ONE", "TWO"),
    "click-checkboxes": check(_wanted_boxes),
    "click-checkboxes-large": check(_wanted_boxes),
    "click-checkboxes-transfer": check(_wanted_boxes),
    "click-collapsible": all_then_submit(lambda view: [click(first(view, "tab"))]),
    "click-collapsible-2": _tabs,
    "click-collapsible-2-nodelay": _tabs,
    "click-collapsible-nodelay": all_then_submit(lambda view: [click(first(view, "tab"))]),
    "click-dialog": lambda view: click(first(view, "button", name="Close")),
    "click-dialog-2": lambda view: click(
        first(view, "button", name={"x": "Close"}.get(quoted_in(view.task)[0], quoted_in(view.task)[0]))
    ),
    "click-link": _quoted,
    "click-menu": _menu,
    "click-option": check(_wanted_boxes),
    "click-tab": lambda view: click(first(view, "tab", name=found_in(r"(Tab #\d+)", view.task))),
    "click-tab-2": _tabs,
    "click-tab-2-easy": _tabs,
    "click-tab-2-hard": _tabs,
    "click-tab-2-medium": _tabs,
    "click-test": lambda view: click(first(view, "button")),
    "click-test-2": lambda view: click(first(view, "button", name="ONE")),
    "click-test-transfer": lambda view: click(first(view, "button", name="ONE")),
    "click-widget": _widget,
    "focus-text": lambda view: click(first(view, "textbox")),
    "focus-text-2": lambda view: click(every(view, "textbox")[number_of(view.task) - 1]),
    "navigate-tree": _folder,
    "phone-book": _contact,
    "search-engine": _search,
    "sign-agreement": _agreement,
    "unicode-test": click_quoted("button"),
}
