"""Linked records: shared, and growing."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.loop.path import History
from envgym.core.messages import Message, Role


def message(text: str) -> Message:
    return Message(role=Role.USER, content=text)


@given(parts=st.lists(st.lists(st.text(max_size=2), max_size=3), max_size=6), data=st.data())
def test_a_history_reads_like_the_tuple_of_its_messages(parts: list[list[str]], data: st.DataObject) -> None:
    history = History()
    expected: tuple[Message, ...] = ()
    for part in parts:
        added = tuple(map(message, part))
        history, expected = history.extended(*added), (*expected, *added)
        if data.draw(st.booleans()):
            assert history.flat == expected, "reading in between changes nothing"
    assert (len(history), tuple(history)) == (len(expected), expected)
    assert history[1:] == expected[1:]
    if expected:
        assert history[-1] is expected[-1]


def test_branches_of_a_history_do_not_see_each_other() -> None:
    trunk = History([message("a")])
    left, right = trunk.extended(message("l")), trunk.extended(message("r"))
    assert [item.content for item in left] == ["a", "l"]
    assert [item.content for item in right] == ["a", "r"]
    assert len(trunk) == 1
