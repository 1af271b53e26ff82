"""Questions and characters as a report shows them."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envgym import Action, Observation, Split, Task, ToolCall
from envgym.core.builder import TreeBuilder
from envgym.core.segments import Origin
from envgym.core.trajectory import trajectories
from envgym.core.tree import Edge
from envgym.core.turns import TurnOutcome
from envgym.report.build import build_episode
from envgym.report.text import whole_characters
from envgym.report.trees import build_tree
from tests.envgym.report.search_tree import search_tree, segment, spoken


def shown_apart(text: str, cuts: set[int]) -> tuple[str, ...]:
    """Cut the bytes of a text at places, and show each part as a tokenizer does."""
    whole = text.encode()
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(whole)), len(whole)]
    parts = [whole[start:end] for start, end in pairwise(places)]
    return tuple(part.decode(errors="backslashreplace") for part in parts)


def test_character_of_several_tokens_stands_with_the_first() -> None:
    # The dice are f0 9f 8e b2: a space with two of the bytes, then the two others one by one.
    assert whole_characters((" \\xf0\\x9f", "\\x8e", "\\xb2 = 5")) == (" \U0001f3b2", "", " = 5")


@given(st.text(st.characters(exclude_characters="\\", exclude_categories=["Cs"])), st.sets(st.integers(0, 60)))
def test_text_is_read_whole_wherever_its_bytes_were_cut(text: str, cuts: set[int]) -> None:
    apart = shown_apart(text, cuts)
    shown = whole_characters(apart)
    assert "".join(shown) == text
    assert len(shown) == len(apart)


def test_bytes_that_are_no_character_stay() -> None:
    strings = ("\\xf0\\x9f", "a", "\\xb2", "\\xff\\xfe")
    assert whole_characters(strings) == strings
    assert whole_characters(("\\x41\\x42", "\\n")) == ("\\x41\\x42", "\\n")  # what ASCII can say is said as text


def test_question_of_a_policy_of_messages_is_the_last_one() -> None:
    tree = spoken("You are brief.", "What  is\n6 * 34?")
    (trajectory,) = trajectories(tree)
    episode = build_episode(trajectory, step=0, source="held-out")
    assert episode.question == "What is 6 * 34?"
    assert [message.text for message in episode.messages] == ["You are brief.", "What  is\n6 * 34?"]


def test_root_of_a_tree_says_the_question() -> None:
    root, *_ = build_tree(search_tree(), step=0).nodes
    assert root.content.summary == "Find the number in 1..99. Guess; I say higher or lower."


def test_turn_after_a_fork_inside_it_says_its_call_or_its_own_end() -> None:
    call = Action("xyz", tool_calls=[ToolCall(name="guess", arguments={"number": 720})])
    for action, summary in ((call, "guess(720)"), (Action("xyz"), "yz")):
        task = Task(id="train/1", prompt="", payload={}, split=Split.TRAIN)
        builder = TreeBuilder(id="t", env_id="e", task=task, seed=0, prompt=())
        text = segment(Origin.POLICY, "x yz", np.random.default_rng(0))
        edge = Edge(segments=(text,), ends_turn=True)
        turn = builder.add(builder.root, edge, outcome=TurnOutcome(action=action, observation=Observation()))
        builder.split(turn, 1)
        _, head, rest = build_tree(builder.freeze(), step=0).nodes
        assert (head.content.summary, rest.content.summary) == ("x", summary)


def test_answer_of_an_episode_that_was_cut_is_the_end_of_what_was_sampled() -> None:
    tree = search_tree()
    cut = next(node for node in build_tree(tree, step=0).nodes if node.stats and node.stats.pruned)
    assert cut.content.summary == "perhaps somewhere near the top"
