"""Ways to use a page that many problems have in common. Each looks only at what the agent sees."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from envgym.envs.web._miniwob_actions import ElementPoint, PageCommand
from envgym.envs.web._miniwob_view import PageElement, PageView

FoundT = TypeVar("FoundT")
Oracle = Callable[[PageView], str]
"""From what is seen to the next action."""

FIELDS = ("textbox", "searchbox", "spinbutton", "date", "time")
LINKS = ("link", "clickable", "button", "text")


class ElementMissing(LookupError):
    """What the solution needs is not on the page."""


# ---- what is there ------------------------------------------------------------------------------------------------


def every(view: PageView, *roles: str, name: str | None = None) -> list[PageElement]:
    """Return the numbered elements of some roles (of any, where none is given), and of a name."""
    named = (node for node in view.nodes if node.id is not None and (name is None or node.name == name))
    return [node for node in named if not roles or node.role in roles]


def first(view: PageView, *roles: str, name: str | None = None) -> PageElement:
    """Return the first of them. Raises: ElementMissing: there is none."""
    elements = every(view, *roles, name=name)
    if not elements:
        raise ElementMissing(f"no {' or '.join(roles) or 'element'} {name or ''} on {view.page}")
    return elements[0]


def leading(candidates: Iterable[FoundT]) -> FoundT:
    """Return the first of what fits. Raises: ElementMissing: nothing does."""
    for candidate in candidates:
        return candidate
    raise ElementMissing("nothing on the page fits")


def texts(view: PageView) -> list[str]:
    """Return the texts that are no element's name."""
    return [node.name for node in view.nodes if node.role == "text"]


def quoted_in(task: str) -> list[str]:
    """Return the texts between quotation marks."""
    return re.findall(r'"([^"]*)"', task)


def found_in(pattern: str, text: str) -> str:
    """Return the text that the group of a pattern matches. Raises: ElementMissing: there is no match."""
    match = re.search(pattern, text)
    if match is None:
        raise ElementMissing(f"{pattern} is not in {text}")
    return match[1]


def number_of(task: str) -> int:
    """Return the n of 1st, 2nd, 3rd, 4th ..."""
    return int(found_in(r"(\d+)(?:st|nd|rd|th)", task))


# ---- what is done -------------------------------------------------------------------------------------------------


def click(node: PageElement, x: float | None = None, y: float | None = None) -> str:
    return str(PageCommand(name="click", start=_place(node, x, y)))


def hover(node: PageElement) -> str:
    """Say that the pointer goes somewhere; also the way to wait."""
    return str(PageCommand(name="hover", start=_place(node)))


def fill(node: PageElement, text: str) -> str:
    return str(PageCommand(name="fill", start=_place(node), text=text))


def select(node: PageElement, *options: str) -> str:
    return str(PageCommand(name="select", start=_place(node), options=options))


def press(node: PageElement, *keys: str) -> str:
    return str(PageCommand(name="press", start=_place(node), keys=keys))


def drag(
    node: PageElement, to: PageElement, *, by: tuple[float, float] | None = None, at: tuple[float, float] | None = None
) -> str:
    """Say a drag onto another element: its middle, or `at` from its corner; `by`: so far from the first's corner."""
    x, y = at or by or (None, None)
    return str(PageCommand(name="drag", start=_place(node), end=_place(to, x, y)))


def _place(node: PageElement, x: float | None = None, y: float | None = None) -> ElementPoint:
    assert node.id is not None, "only numbered elements are found"
    return ElementPoint(node.id, x, y)


def is_done(view: PageView, action: str) -> bool:
    return action in view.past


def undone(view: PageView, actions: Iterable[str]) -> str | None:
    """Return the first action that was not done before."""
    return next((action for action in actions if not is_done(view, action)), None)


def submit(view: PageView, *names: str) -> str:
    labels = names or ("Submit",)
    return click(next((node for node in every(view, "button", "clickable") if node.name in labels), _nothing))


_nothing = PageElement(id=0, role="", name="")


# ---- kinds of problems --------------------------------------------------------------------------------------------


def click_quoted(*roles: str) -> Oracle:
    return lambda view: click(first(view, *roles, name=quoted_in(view.task)[0]))


def click_in_turn(*names: str) -> Oracle:
    return lambda view: click(first(view, name=names[len(view.past)]))


def all_then_submit(actions_of: Callable[[PageView], Iterable[str]], *names: str) -> Oracle:
    """Do each action once, whatever the order, then submit."""
    return lambda view: undone(view, actions_of(view)) or submit(view, *names)


def check(names_of: Callable[[str], Sequence[str]]) -> Oracle:
    """Check the boxes of some names, and no others, then submit."""

    def solve(view: PageView) -> str:
        labels = names_of(view.task)
        wrong = [box for box in every(view, "checkbox", "radio") if box.checked != (box.name in labels)]
        boxes = [box for box in wrong if box.role == "checkbox" or not box.checked]
        return click(boxes[0]) if boxes else submit(view)

    return solve


def enter(values_of: Callable[[PageView], Sequence[str]], *names: str) -> Oracle:
    """Fill the fields that are empty at first, in their order, then submit."""

    def solve(view: PageView) -> str:
        fields = [node for node in every(view, *FIELDS) if not (node.multiline or node.disabled)]
        pairs = zip(fields, values_of(view), strict=False)
        wrong = [(field, value) for field, value in pairs if field.value != value]
        return fill(*wrong[0]) if wrong else submit(view, *names)

    return solve


def open_until(wanted_of: Callable[[PageView], PageElement | None], *covers: str) -> Oracle:
    """Click what is wanted; while it is not to be seen, click the next cover that was not clicked before."""

    def solve(view: PageView) -> str:
        target = wanted_of(view)
        if target is not None:
            return click(target)
        closed = (click(node) for node in every(view, *covers) if not node.expanded)
        return undone(view, closed) or click(_nothing)

    return solve


def link_quoted(view: PageView) -> PageElement | None:
    return next(iter(every(view, "link", "clickable", name=quoted_in(view.task)[0])), None)
