"""Hints: their tokens are injected, nothing else changes, and the context without them is kept."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.loop.hints import mark_hint, token_ids
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.core.messages import GUIDE, Message, Role, reworded, with_hint
from envgym.core.segments import Origin, Segment
from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.errors import InvalidInput
from tests.support.parrots import ASSISTANT, END, USER, char_agent, encode, parrot_job, run_episodes, said

QUESTION = Message(role=Role.USER, content="Q")


def episode(hint: str | None, **prompts: str) -> Tree:
    job = replace(parrot_job(), hint=hint, prompts=prompts)
    policy = ScriptedPolicy(lambda request: said("bye"))
    (tree,) = asyncio.run(run_episodes([job], char_agent(), policy, concurrency=1, clock=lambda: 0.0))
    return tree


def test_hint_follows_the_users_message_or_stands_alone() -> None:
    (message,) = with_hint([QUESTION], "H")
    assert (message.role, message.content, message.name) == (Role.USER, "Q\n\nH", None)
    system = Message(role=Role.SYSTEM, content="S")
    assert with_hint([QUESTION, system], "H")[1:] == (system, Message(role=Role.USER, content="H", name=GUIDE))
    assert with_hint([], "H") == (Message(role=Role.USER, content="H", name=GUIDE),)


def test_hint_is_injected_and_the_plain_context_is_kept() -> None:
    tree = episode("H")
    # <user> Q | \n \n H | <end> <assistant>: the second part is what the plain context lacks
    assert [(part.origin, part.token_ids) for part in tree.nodes[0].edge.segments] == [
        (Origin.PROMPT, (USER, *encode("Q"))),
        (Origin.INJECTED, encode("\n\nH")),
        (Origin.PROMPT, (END,)),
        (Origin.TEMPLATE, (ASSISTANT,)),
    ]
    assert tree.prompts == {"plain": (USER, *encode("Q"), END, ASSISTANT)}
    assert "".join(tree.nodes[0].edge.segments[1].token_strings) == "\n\nH"


def test_episode_without_hint_is_what_it_was_and_may_keep_a_context_with_one() -> None:
    plain = episode(None)
    assert plain.prompts == {}
    beside = episode(None, skill="S")
    assert beside.nodes == plain.nodes
    assert beside.prompts == {"skill": (USER, *encode("Q\n\nS"), END, ASSISTANT)}
    assert set(episode("H", skill="S").prompts) == {"plain", "skill"}


def test_other_words_stand_in_place_of_the_tasks_own() -> None:
    system = Message(role=Role.SYSTEM, content="S")
    answer = Message(role=Role.ASSISTANT, content="A")
    first, last = QUESTION, Message(role=Role.USER, content="R")
    found = reworded([system, first, answer, last, answer], "<t>{task}</t> {task}?")
    assert found == (system, first, answer, Message(role=Role.USER, content="<t>R</t> R?"), answer)
    assert reworded([system, QUESTION], "H") == with_hint([system, QUESTION], "H")
    with pytest.raises(InvalidInput, match="context must hold a message of the user, got none"):
        reworded([system], "<t>{task}</t>")
    beside = episode(None, xml="<t>{task}</t>")
    assert beside.nodes == episode(None).nodes
    assert beside.prompts == {"xml": (USER, *encode("<t>Q</t>"), END, ASSISTANT)}


def test_prompts_are_written_and_read_back() -> None:
    tree = episode("H")
    assert tree_from_json(tree_to_json(tree)) == tree
    assert "prompts" not in tree_to_json(episode(None))


def segments(*parts: list[int]) -> tuple[Segment, ...]:
    return tuple(Segment(origin=Origin.PROMPT, token_ids=tuple(part)) for part in parts if part)


ids = st.lists(st.integers(0, 2), max_size=4)


@given(ids, ids, ids)
def test_what_is_marked_is_what_the_plain_context_lacks(head: list[int], hint: list[int], tail: list[int]) -> None:
    plain, hinted = segments(head, tail), segments(head, hint, tail)
    marked = mark_hint(plain, hinted)
    assert token_ids(marked) == token_ids(hinted)
    assert sum(len(part) for part in marked if part.origin is Origin.INJECTED) == len(hint)
    kept = [part for part in marked if part.origin is Origin.PROMPT]
    assert token_ids(kept) == token_ids(plain)


def test_mark_of_equal_contexts_marks_nothing() -> None:
    assert mark_hint(segments([1, 2], [3]), segments([1, 2], [3])) == segments([1, 2], [3])


@pytest.mark.parametrize("hint", ["H", "Q", "QQ"])
def test_row_trains_nothing_of_the_hint(hint: str) -> None:
    (path,) = trajectories(episode(hint))
    (row,) = path.rows
    trained = [token for token, trains in zip(row.token_ids, row.loss_mask, strict=True) if trains]
    assert trained == list(said("bye"))
