"""A page in text: every state of an element in its line, and what changed since the last turn."""

from dataclasses import replace

import pytest

from envgym.envs.web._miniwob_view import MAX_LINES, PageElement, PageView, show_elements

NAME = PageElement(id=1, role="textbox", name="Name", value="")
YES = PageElement(id=2, role="checkbox", name="Yes", checked=False)
VIEW = PageView(page="p", task="Do it.", nodes=(NAME, YES, PageElement(id=None, role="text", name="or")))


@pytest.mark.parametrize(
    "node, line",
    [
        (NAME, '[1] textbox "Name" value ""'),
        (
            replace(NAME, value='a "b"', focused=True, multiline=True),
            r'[1] textbox "Name" value "a \"b\"" multiline focused',
        ),
        (replace(YES, checked=True, disabled=True, depth=1), '  [2] checkbox "Yes" checked disabled'),
        (PageElement(id=None, role="text", name="or"), 'text "or"'),
        (
            PageElement(id=3, role="combobox", name="", value="B", options=("A", "B")),
            '[3] combobox value "B" options "A" "B"',
        ),
        (PageElement(id=4, role="tab", name="T", expanded=False, selected=True), '[4] tab "T" collapsed selected'),
        (PageElement(id=5, role="region", name="", scrolled=(10, 90)), "[5] region scrolled 10 of 90"),
        (PageElement(id=6, role="rect", name="", color="red", box=(1, 2, 3, 4)), "[6] rect red at 1,2 size 3x4"),
    ],
)
def test_an_element_is_one_line(node: PageElement, line: str) -> None:
    assert str(node) == line


def test_what_the_script_writes_is_read_with_names_of_colors() -> None:
    data = '{"id": 6, "role": "rect", "name": "", "depth": 2, "color": "#ff0000", "box": [1, 2, 3, 4]}'
    text = f'{{"task": "T", "nodes": [{data}], "notes": ["n"], "selection": "s", "isOver": true, "reward": -1}}'
    node = PageElement(id=6, role="rect", name="", depth=2, color="red", box=(1, 2, 3, 4))
    expected = PageView(page="p", task="T", nodes=(node,), notes=("n",), selection="s", is_over=True, reward=-1.0)
    assert PageView.read("p", text) == expected


def test_the_first_page_is_shown_whole_and_unmarked() -> None:
    assert show_elements(VIEW) == 'Task: Do it.\n[1] textbox "Name" value ""\n[2] checkbox "Yes" unchecked\ntext "or"'
    assert show_elements(VIEW, changes_only=True) == show_elements(VIEW)


def test_what_changed_has_a_star_and_what_went_is_named() -> None:
    filled = replace(NAME, value="Ann")
    now = replace(
        VIEW, nodes=(filled, PageElement(id=9, role="button", name="Send")), notes=("Well.",), selection="Ann"
    )
    lines = ["Well.", "Task: Do it.", '*[1] textbox "Name" value "Ann"', '*[9] button "Send"', "Gone: [2]"]
    assert show_elements(now, VIEW) == "\n".join([*lines, 'Marked text: "Ann"'])


def test_only_changes_are_shown_where_asked() -> None:
    now = replace(VIEW, nodes=(NAME, replace(YES, checked=True)))
    assert show_elements(now, VIEW, changes_only=True) == 'Task: Do it.\n*[2] checkbox "Yes" checked'
    assert show_elements(VIEW, VIEW, changes_only=True) == "Task: Do it.\nNothing changed."


def test_a_long_page_is_cut_and_says_so() -> None:
    nodes = tuple(PageElement(id=id, role="text", name="x") for id in range(MAX_LINES + 7))
    lines = show_elements(replace(VIEW, nodes=nodes)).splitlines()
    assert (len(lines), lines[-1]) == (MAX_LINES + 2, "(7 more elements)")
