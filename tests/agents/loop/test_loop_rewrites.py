"""What trains is what was given and sampled: contexts written anew, and the law over scripts of all kinds."""

from itertools import pairwise, zip_longest

from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.loop.agent import OnLength
from envgym.agents.loop.context import CONTEXT_STRATEGY
from envgym.agents.protocols import GenerateRequest
from envgym.config.plugins import Choice
from envgym.core.segments import Origin
from envgym.core.tree import Rewrite
from envgym.core.turns import Ending
from tests.agents.episodes import drawn, episode
from tests.support.parrots import CALL, CharRenderer, char_agent, said, show


def test_dropping_the_oldest_turns_starts_a_row_whose_context_is_all_prompt() -> None:
    # The prompt has 4 tokens; a turn of 4 characters adds 5 sampled and 8 rendered. Before turn 2 the context would
    # have 4 + 13 + 13 = 30 > 40 - 12; without turn 0 it has 17.
    agent = char_agent(max_turn_tokens=12, max_context_tokens=40, context=Choice(name="drop_oldest_turns"))
    trajectory, policy = episode([said("one1"), said("two2"), said("bye")], agent)
    first, second = trajectory.rows
    text, marks = drawn(second)
    assert text + "\n" + marks == (
        "<user>Q<end><assistant>two2<end><user>two2!<end><assistant>bye<end>\n"
        "...........................................................TTTTTTTT"
    )
    assert "".join(show(first.token_ids)) == ("<user>Q<end><assistant>one1<end><user>one1!<end><assistant>two2<end>")
    assert second.rewrite is Rewrite.TURNS_DROPPED
    assert [s.origin for s in second.segments] == [Origin.PROMPT, Origin.PROMPT, Origin.POLICY]
    assert [request.token_ids for request in policy.requests][2] == second.token_ids[:17]
    assert trajectory.num_sampled == sum(sum(row.loss_mask) for row in trajectory.rows) == 5 + 5 + 4
    contexts = [trajectory.tree.nodes[turn.nodes[0]].edge.context for turn in trajectory.turns]
    assert contexts[:2] == [(), ()]
    assert [message.content for message in contexts[2]] == ["Q", "two2", "two2!"]


def test_a_request_names_the_turn_that_its_context_begins_with_unless_the_context_is_written_anew() -> None:
    agent = char_agent(CharRenderer(drops_thinking=True))
    _, policy = episode([said("a"), said("<think>x</think>b"), said("c"), said("bye")], agent)
    named = [request.continues for request in policy.requests]
    assert [earlier is not None for earlier in named] == [False, True, False, True]
    for (before, request), earlier in zip(pairwise(policy.requests), named[1:], strict=True):
        if earlier is not None:
            assert earlier.context is before.token_ids, "the very object, by which a client finds what it has sent"
            known = earlier.context + earlier.generation.token_ids
            assert request.token_ids[: len(known)] == known


def test_nothing_left_to_drop_ends_the_episode() -> None:
    agent = char_agent(max_turn_tokens=12, max_context_tokens=28, context=Choice(name="drop_oldest_turns"))
    trajectory, _ = episode([said("one1")], agent)  # 17 > 28 - 12, and the last turn stays
    assert trajectory.ending is Ending.TRUNCATED_TOKENS
    assert len(trajectory.turns) == 1


def test_dropping_thinking_keeps_what_was_said() -> None:
    agent = char_agent(max_turn_tokens=40, max_context_tokens=80, context=Choice(name="drop_thinking"))
    trajectory, _ = episode([said("<think>hmm hmm hmm hmm</think>one"), said("bye")], agent)
    assert [row.rewrite for row in trajectory.rows] == [None, Rewrite.THINKING_DROPPED]
    assert "".join(show(trajectory.rows[1].token_ids)) == (
        "<user>Q<end><assistant>one<end><user>one!<end><assistant>bye<end>"
    )
    context = trajectory.tree.nodes[trajectory.turns[1].nodes[0]].edge.context
    assert [(message.content, message.thinking) for message in context] == [("Q", None), ("one", None), ("one!", None)]


def test_a_template_that_forgets_thinking_is_recorded_as_a_rewrite() -> None:
    agent = char_agent(CharRenderer(drops_thinking=True))
    trajectory, _ = episode([said("<think>x</think>a"), said("b"), said("bye")], agent)
    first, second = trajectory.rows
    assert all(node.edge.context == () for node in trajectory.tree.nodes), "the messages are those of the turns above"
    assert "".join(show(first.token_ids)) == "<user>Q<end><assistant><think>x</think>a<end>"
    assert "".join(show(second.token_ids)) == (
        "<user>Q<end><assistant>a<end><user>a!<end><assistant>b<end><user>b!<end><assistant>bye<end>"
    )
    assert second.rewrite is Rewrite.THINKING_DROPPED
    assert sum(sum(row.loss_mask) for row in trajectory.rows) == trajectory.num_sampled == 18 + 2 + 4


texts = st.text(alphabet='ab <>{}"/', max_size=6)
turns = st.lists(
    st.one_of(
        texts,
        st.just(CALL),
        st.just("<tool_call>{"),
        texts.map(lambda text: f"<think>{text}</think>{text}"),
        st.sampled_from(["bye", "crash", "unplug"]),
    ),
    min_size=1,
    max_size=8,
)


@given(
    turns=turns,
    drops_thinking=st.booleans(),
    budget=st.sampled_from([60, 120, 100_000]),
    strategy=st.sampled_from([Choice(name=name) for name in CONTEXT_STRATEGY.table]),
    on_length=st.sampled_from(OnLength),
)
def test_what_is_trained_is_what_the_policy_was_given_and_what_it_sampled(
    turns: list[str], drops_thinking: bool, budget: int, strategy: Choice, on_length: OnLength
) -> None:
    agent = char_agent(
        CharRenderer(drops_thinking=drops_thinking),
        max_turn_tokens=30,
        max_context_tokens=budget,
        context=strategy,
        on_length=on_length,
    )
    trajectory, policy = episode([said(text) for text in turns], agent)
    seen = given_and_sampled(policy.requests, turns)
    assert [row.token_ids for row in trajectory.rows] == rows_of(seen)
    assert sum(sum(row.loss_mask) for row in trajectory.rows) == sum(len(sampled) for _, sampled in seen)
    for row in trajectory.rows:
        assert all(len(segment.token_strings) == len(segment) for segment in row.segments)
        assert show(row.token_ids) == tuple(string for segment in row.segments for string in segment.token_strings)


def given_and_sampled(
    requests: list[GenerateRequest], turns: list[str]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return what the policy was given and what it answered, turn by turn: nothing where the script had ended."""
    contexts = [request.token_ids for request in requests]
    replies = [said(text)[: request.sampling.max_new_tokens] for request, text in zip(requests, turns, strict=False)]
    return list(zip_longest(contexts, replies, fillvalue=()))


def rows_of(seen: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[tuple[int, ...]]:
    """Return the last context of each run in which every context begins with the one before and its answer."""
    rows: list[tuple[int, ...]] = []
    for context, sampled in seen:
        if rows and context[: len(rows[-1])] == rows[-1]:
            rows.pop()
        rows.append(context + sampled)
    return rows
