"""Actions as text: what is read, what is refused, and that each is read as it is written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.envs.web._miniwob_actions import (
    HINT,
    KEYS,
    ActionRefused,
    ElementPoint,
    PageCommand,
    check_command,
    parse_command,
)

ids = st.integers(0, 99_999)
offsets = st.integers(-500, 500).map(float)
elements = ids.map(ElementPoint)
places = elements | st.builds(ElementPoint, ids, offsets, offsets)
texts = st.text(max_size=30)
keys = st.sampled_from([*sorted(KEYS), "a", "?", "Shift+Tab", "Control+a"])
commands = (
    st.builds(PageCommand, name=st.sampled_from(["click", "hover"]), start=places)
    | st.builds(PageCommand, name=st.just("drag"), start=places, end=places)
    | st.builds(PageCommand, name=st.just("fill"), start=elements, text=texts)
    | st.builds(PageCommand, name=st.just("select"), start=elements, options=st.lists(texts, min_size=1).map(tuple))
    | st.builds(
        PageCommand,
        name=st.just("press"),
        start=st.none() | elements,
        keys=st.lists(keys, min_size=1, max_size=5).map(tuple),
    )
    | st.builds(PageCommand, name=st.just("scroll"), start=st.none() | elements, pixels=st.integers(-9999, 9999))
    | st.just(PageCommand(name="back"))
)


@settings(max_examples=40)
@given(commands)
def test_an_action_is_read_as_it_is_written(command: PageCommand) -> None:
    assert parse_command(str(command)) == command


@pytest.mark.parametrize(
    "text, command",
    [
        ("click 3", PageCommand(name="click", start=ElementPoint(3))),
        ("I choose the button.\n  Click [3]", PageCommand(name="click", start=ElementPoint(3))),
        ("click 3 at 10, -2.5", PageCommand(name="click", start=ElementPoint(3, 10.0, -2.5))),
        ("drag 1 at 0 0 to 2", PageCommand(name="drag", start=ElementPoint(1, 0.0, 0.0), end=ElementPoint(2))),
        ("fill 4 two words", PageCommand(name="fill", start=ElementPoint(4), text="two words")),
        (r'fill 4 "a \"b\"\n"', PageCommand(name="fill", start=ElementPoint(4), text='a "b"\n')),
        ("fill 4", PageCommand(name="fill", start=ElementPoint(4))),
        (
            'select 5 "New York", "Rome"',
            PageCommand(name="select", start=ElementPoint(5), options=("New York", "Rome")),
        ),
        ("select 5 New York", PageCommand(name="select", start=ElementPoint(5), options=("New York",))),
        ("press Enter", PageCommand(name="press", keys=("Enter",))),
        ("press l s Enter on 2", PageCommand(name="press", keys=("l", "s", "Enter"), start=ElementPoint(2))),
        ("scroll by -40", PageCommand(name="scroll", pixels=-40)),
        ("goto http://example.org", PageCommand(name="goto", text="http://example.org")),
        ("answer I cannot do it", PageCommand(name="answer", text="I cannot do it")),
    ],
)
def test_actions_by_hand(text: str, command: PageCommand) -> None:
    assert parse_command(text) == command


@pytest.mark.parametrize(
    "text", ["", "hello", "click", "click x", "click 3 at 4", "click 1\nclick 2", "drag 1", "scroll 40", "back now"]
)
def test_what_is_no_single_action_is_answered_with_the_grammar(text: str) -> None:
    with pytest.raises(ActionRefused) as refusal:
        parse_command(text)
    assert str(refusal.value) == HINT


@pytest.mark.parametrize(
    "command, why",
    [
        (PageCommand(name="press", keys=("F5",)), "There is no key 'F5'"),
        (PageCommand(name="press", keys=("Alt+ArrowLeft",)), "There is no key"),
        (PageCommand(name="press", keys=("Control+v",)), "There is no clipboard"),
        (PageCommand(name="press", keys=("Control+w",)), "Control goes with a"),
        (PageCommand(name="press", keys=("",)), "There is no key ''"),
        (PageCommand(name="press", keys=("a",) * 101), "At most 100 keys"),
        (PageCommand(name="fill", start=ElementPoint(1), text="x" * 5001), "at most 5000 characters"),
    ],
)
def test_what_would_leave_the_page_or_take_long_is_refused(command: PageCommand, why: str) -> None:
    with pytest.raises(ActionRefused, match=why):
        check_command(command)


def test_a_drag_onto_the_same_element_marks_it_from_its_first_to_its_last_corner() -> None:
    ends = parse_command("drag 3 to 3").for_page()
    assert [ends["from"], ends["to"]] == [
        {"id": 3, "x": None, "y": None, "part": "first"},
        {"id": 3, "x": None, "y": None, "part": "last"},
    ]
    assert parse_command("drag 3 to 4").for_page()["to"] == {"id": 4, "x": None, "y": None, "part": "middle"}
