"""What is left out when the context is full."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.loop.context import Shortened, drop_oldest_turns, drop_thinking, shorten, stop
from envgym.agents.protocols import Rendering
from envgym.core.messages import Message, Role
from envgym.core.segments import Origin, Segment
from envgym.core.tree import Rewrite

SYSTEM, TASK = Message(role=Role.SYSTEM, content="S"), Message(role=Role.USER, content="Q")


def turn(number: int, thinking: str | None = None) -> tuple[Message, Message]:
    said = Message(role=Role.ASSISTANT, content=str(number), thinking=thinking)
    return said, Message(role=Role.TOOL, content=f"r{number}")


def conversation(num_turns: int) -> tuple[Message, ...]:
    return (SYSTEM, TASK, *(message for number in range(num_turns) for message in turn(number)))


def render(messages: Sequence[Message]) -> Rendering:
    """Render ten tokens a message, and one for each character of thinking."""
    size = sum(10 + len(message.thinking or "") for message in messages)
    return Rendering(segments=(Segment(origin=Origin.PROMPT, token_ids=(0,) * size),))


def shown(found: Shortened | None) -> str | None:
    return None if found is None else "".join(message.content for message in found.messages)


def test_stop_leaves_nothing_out() -> None:
    assert shorten(stop, conversation(5), render, 50) is None


def test_oldest_turns_go_until_half_of_the_budget_is_free() -> None:
    # 12 messages, 120 tokens. Half of 100 is 50: the task's 2 messages, and turn 4's.
    found = shorten(drop_oldest_turns, conversation(5), render, 100)
    assert shown(found) == "SQ4r4"
    assert found is not None
    assert found.rewrite is Rewrite.TURNS_DROPPED
    # Half of 130 is 65: turns 3 and 4 make 60.
    assert shown(shorten(drop_oldest_turns, conversation(5), render, 130)) == "SQ3r34r4"


def test_where_half_cannot_be_had_the_whole_budget_counts() -> None:
    # The shortest has 40 tokens: more than half of 50, not more than 50.
    assert shown(shorten(drop_oldest_turns, conversation(5), render, 50)) == "SQ4r4"
    assert shorten(drop_oldest_turns, conversation(5), render, 39) is None


def test_the_task_and_the_last_turn_are_never_dropped() -> None:
    assert drop_oldest_turns(conversation(0)) is None
    assert drop_oldest_turns(conversation(1)) is None
    proposal = drop_oldest_turns(conversation(3))
    assert proposal is not None
    assert all(item[:2] == (SYSTEM, TASK) and item[-2:] == turn(2) for item in proposal.conversations)


def test_thinking_goes_and_what_was_said_stays() -> None:
    thoughtful = (TASK, *turn(0, "hmm" * 10), *turn(1))
    found = shorten(drop_thinking, thoughtful, render, 60)
    assert found is not None
    assert found.messages == (TASK, *turn(0), *turn(1))
    assert found.rewrite is Rewrite.THINKING_DROPPED
    assert drop_thinking(found.messages) is None


@given(num_turns=st.integers(0, 12), budget=st.integers(0, 300))
def test_as_little_goes_as_leaves_half_of_the_budget(num_turns: int, budget: int) -> None:
    sizes = [20 + 20 * kept for kept in range(1, num_turns)]
    expected = max((size for size in sizes if size <= budget // 2), default=40 if sizes and budget >= 40 else None)
    found = shorten(drop_oldest_turns, conversation(num_turns), render, budget)
    assert (None if found is None else len(found.rendering.segments[0])) == expected
