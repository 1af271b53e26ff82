"""Linked records: shared, growing, and joined into trees."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.path import History, Link, tree_of
from envgym.core.endings import Ending
from envgym.core.messages import Message, Role
from envgym.core.segments import Origin, Segment
from envgym.core.tree import Edge
from envgym.core.turns import Cost
from tests.support.parrots import parrot_task


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


def edge(*ids: int, seconds: float = 0.0) -> Edge:
    segments = (Segment(origin=Origin.PROMPT, token_ids=ids),) if ids else ()
    return Edge(segments=segments, ends_turn=False, cost=Cost(seconds=seconds))


def test_leaves_of_one_root_join_into_a_tree_that_shares_their_links() -> None:
    root = Link(None, edge(1, seconds=2.0))
    trunk = Link(root, edge(2))
    leaves = [
        Link(trunk, edge(3), ending=Ending.TERMINATED),
        Link(trunk, edge(4), ending=Ending.ERROR_ENV, error="x"),
        Link(root, edge(5), ending=Ending.TERMINATED),
    ]
    tree = tree_of(leaves, id="t", env_id="e", task=parrot_task("Q"), seed=1)
    assert [node.parent for node in tree.nodes] == [None, 0, 1, 1, 0]
    assert [node.edge.segments[0].token_ids for node in tree.nodes] == [(1,), (2,), (3,), (4,), (5,)]
    assert [node.ending for node in tree.nodes] == [None, None, *(leaf.ending for leaf in leaves)]
    assert (tree.nodes[3].error, tree.cost.seconds) == ("x", 2.0)


def test_a_root_may_be_the_leaf() -> None:
    tree = tree_of(
        [Link(None, edge(), ending=Ending.ERROR_ENV, error="x")], id="t", env_id="e", task=parrot_task("Q"), seed=1
    )
    assert (tree.leaves, tree.nodes[0].error) == ((0,), "x")
