"""Solutions by hand on pages that are written down: what they do next is concluded from what is seen."""

from dataclasses import replace

import pytest

from envgym.envs.web._miniwob_oracles import EASY, ORACLES
from envgym.envs.web._miniwob_solving import ElementMissing
from envgym.envs.web._miniwob_view import PageElement, PageView

SUBMIT = PageElement(id=9, role="button", name="Submit")


def page(name: str, task: str, *nodes: PageElement, past: tuple[str, ...] = ()) -> PageView:
    return PageView(page=name, task=task, nodes=(*nodes, SUBMIT), past=past)


def field(id: int, value: str = "") -> PageElement:
    return PageElement(id=id, role="textbox", name="", value=value)


def numbers(*names: str) -> tuple[PageElement, ...]:
    return tuple(PageElement(id=place, role="listitem", name=name) for place, name in enumerate(names, start=1))


def text(name: str, id: int | None = None) -> PageElement:
    return PageElement(id=id, role="text", name=name)


A, B = (
    PageElement(id=1, role="checkbox", name="a", checked=False),
    PageElement(id=2, role="checkbox", name="b", checked=False),
)
WANTED = "Select b and click Submit."
TAG = 'Enter an item that starts with "Chad" and ends with "ad".'
SLIDER = PageElement(id=1, role="clickable", name="ui-slider-handle")


@pytest.mark.parametrize(
    "view, action",
    [
        (page("click-checkboxes", WANTED, A, B), "click 2"),
        (page("click-checkboxes", WANTED, replace(A, checked=True), replace(B, checked=True)), "click 1"),
        (page("click-checkboxes", WANTED, A, replace(B, checked=True)), "click 9"),
        (page("enter-date", "Enter 01/05/2015 as the date", field(1)), 'fill 1 "2015-01-05"'),
        (page("enter-time", "Enter 12:04 AM as the time", field(1)), 'fill 1 "00:04"'),
        (page("enter-time", "Enter 1:04 PM as the time", field(1, "13:04")), "click 9"),
        # 5 - x = 90: x = -85. x - 3 = 4: x = 7. 2 + x = 9: x = 7.
        (page("simple-algebra", "Solve", text("5 - x = 90"), field(1)), 'fill 1 "-85"'),
        (page("simple-algebra", "Solve", text("x - 3 = 4"), field(1)), 'fill 1 "7"'),
        (page("simple-algebra", "Solve", text("2 + x = 9"), field(1)), 'fill 1 "7"'),
        (page("find-word", "Find the 2nd word in it", text("Sed, augue. Nunc"), field(1)), 'fill 1 "augue"'),
        (page("use-slider", "Select 3 with the slider", SLIDER, text("5", 2)), "press ArrowLeft ArrowLeft on 1"),
        (page("use-slider", "Select -5 with the slider", SLIDER, text("-5", 2)), "click 9"),
        (page("use-autocomplete", TAG, field(1)), 'fill 1 "Chad"'),
        (page("use-autocomplete", TAG, field(1, "Chad"), past=('fill 1 "Chad"', "click 6")), "click 9"),
        # Sorted: -9 -9 -5 6. The first is in its place, the second is the last of the list and not the first again.
        (page("drag-sort-numbers", "Sort", *numbers("-9", "6", "-5", "-9")), "drag 4 to 2 at 40 2"),
        (page("drag-sort-numbers", "Sort", *numbers("-9", "-9", "-5", "6")), "click 9"),
        (page("click-menu", "Select A>B", PageElement(id=1, role="menuitem", name="A")), "hover 1"),
    ],
)
def test_the_next_action_follows_from_what_is_seen(view: PageView, action: str) -> None:
    assert ORACLES[view.page](view) == action


def test_a_page_without_what_the_solution_needs_is_an_error_and_not_a_guess() -> None:
    with pytest.raises(ElementMissing, match="no button 0 on count-shape"):
        ORACLES["count-shape"](page("count-shape", "How many large red letters are there?"))


@pytest.mark.parametrize(
    "past, told, guess",
    [
        # Of 0 to 9: 4, then 7 if higher, then 5 if lower (between 4 and 7), then 6 if higher.
        ((), "Waiting", 4),
        ((4,), "The number is higher than 4", 7),
        ((4, 7), "The number is lower than 7", 5),
        ((4, 7, 5), "The number is higher than 5", 6),
        ((4,), "The number is lower than 4", 1),
    ],
)
def test_guesses_halve_what_is_left(past: tuple[int, ...], told: str, guess: int) -> None:
    actions = tuple(action for number in past for action in (f'fill 1 "{number}"', "click 9"))
    view = page(
        "guess-number", "Guess", text(told), PageElement(id=1, role="spinbutton", name="", value=""), past=actions
    )
    assert ORACLES["guess-number"](view) == f'fill 1 "{guess}"'


def test_at_least_sixty_pages_have_a_solution_and_the_easy_ones_are_among_them() -> None:
    assert len(ORACLES) >= 60
    assert set(EASY) <= set(ORACLES)
