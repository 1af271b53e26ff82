"""Conversations of a program, one rule each: what goes on, what is refused, what counts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from envgym import Message, Role
from envgym.agents.protocols import FinishReason, Rendering, VersionSpan
from envgym.agents.rollout.programs.calls import CallRefused, CallReply, RefusalKind, ReplyFinish
from envgym.core.tree import Rewrite
from envgym.core.turns import Ending, Scored
from envgym.seeds import derive_seed
from envgym.tools import ToolSpec
from tests.agents.rollout.programs.playing import LOOK, Client, sample
from tests.support.parrots import CALL, CharRenderer, char_agent, show


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def test_of_two_calls_on_one_turn_the_second_begins_a_row_with_its_context_as_one_prompt() -> None:
    client = Client()
    first = [user("Q"), client.say([user("Q")], "one")]
    left = [*first, user("left"), client.say([*first, user("left")], "two")]
    client.say([*first, user("right")], "three")
    client.say([*left, user("more")], "four")
    side, main = client.episode().rows  # by their last turns
    assert ["".join(show(row.token_ids)) for row in (main, side)] == [
        "<user>Q<end><assistant>one<end><user>left<end><assistant>two<end><user>more<end><assistant>four<end>",
        "<user>Q<end><assistant>one<end><user>right<end><assistant>three<end>",
    ]
    # the row that begins the path has the first prompt, as its root; the sampled "one" trains in the other row
    assert [len(segments) for segments in (side.segments,)] == [2]
    assert [sum(row.loss_mask) for row in (side, main)] == [len("three") + 1, len("one") + len("two") + len("four") + 3]
    assert (side.rewrite, main.rewrite) == (None, Rewrite.CONVERSATION)


def test_other_tools_and_another_system_message_make_another_conversation() -> None:
    client = Client()
    history = [user("Q"), client.say([user("Q")], "one"), user("more")]
    client.say(history, tools=(LOOK,))
    client.say([Message(role=Role.SYSTEM, content="today"), *history])
    client.say(history)
    assert [turn.call.conversation for turn in client.conversations.turns] == [0, 1, 2, 0]


def test_an_assistant_message_that_was_not_sampled_makes_another_conversation() -> None:
    client = Client()
    history = [user("Q"), client.say([user("Q")], "one"), user("more")]
    edited = Message(role=Role.ASSISTANT, content="edited")
    client.say([*history, edited, user("go on")])
    client.say([user("Q"), edited, user("go on")])
    assert [turn.call.conversation for turn in client.conversations.turns] == [0, 1, 2]


def test_of_equal_replies_a_call_goes_on_from_the_newest_that_was_delivered() -> None:
    client = Client()
    calls = [client.ask([user("Q")]) for _ in range(3)]
    for call in calls:
        client.conversations.answered(call, sample(call.request, ["one"]))
    history = [user("Q"), Message(role=Role.ASSISTANT, content="one"), user("more")]
    client.conversations.delivered(calls[1])
    client.conversations.delivered(calls[0])
    parent = client.ask(history).parent
    assert parent is not None
    assert parent.call.number == calls[1].number
    client.conversations.dropped(calls[2])  # its reply never came
    assert [turn.call.number for turn in client.conversations.turns] == [1, 0]


def test_a_reply_that_comes_back_was_delivered() -> None:
    client = Client()
    calls = [client.ask([user("Q")]) for _ in range(2)]
    for call in calls:
        client.conversations.answered(call, sample(call.request, ["one"]))
    client.ask([user("Q"), Message(role=Role.ASSISTANT, content="one"), user("more")])
    assert [turn.call.number for turn in client.conversations.turns] == [calls[1].number]


def test_thinking_is_part_of_a_message_only_where_it_is_compared() -> None:
    for compares, conversations in ((False, 0), (True, 1)):
        client = Client(compares_thinking=compares)
        reply = client.say([user("Q")], "<think>hm</think>one")
        client.say([user("Q"), reply, user("more")])
        client.say([user("Q"), replace(reply, thinking=None), user("other")])
        assert [turn.call.conversation for turn in client.conversations.turns] == [0, 0, conversations]


def test_results_of_tools_are_named_after_the_calls_that_they_answer() -> None:
    client = Client()
    two = f"{CALL}{CALL.replace('look', 'smell')}"
    reply = client.say([user("Q")], two)
    first, second = reply.tool_calls
    assert (first.name, first.id, second.name, second.id) == ("look", "call_0_0", "smell", "call_0_1")
    by_id = [Message(role=Role.TOOL, content=call.name, tool_call_id=call.id) for call in (second, first)]
    by_place = [replace(message, tool_call_id=None) for message in by_id]
    for results, names in ((by_id, ["smell", "look"]), (by_place, ["look", "smell"])):
        asked = client.ask([user("Q"), reply, *results])
        assert [message.name for message in asked.state.history.flat[2:]] == names
        assert [message.tool_call_id for message in asked.state.history.flat[2:]] == [
            None,
            None,
        ]  # as the format has it
    copied = client.ask([user("Other"), reply, *by_id])  # a conversation that began elsewhere
    assert [message.name for message in copied.state.history.flat[2:]] == ["smell", "look"]


def test_calls_with_one_context_have_seeds_of_their_own_and_the_first_conversation_the_native_ones() -> None:
    client = Client()
    first = client.ask([user("Q")])
    same = client.ask([user("Q")])
    reply = client.answer(first, "one")
    parallel = [client.ask([user("Q"), reply, user(text)]) for text in ("a", "b", "a")]
    helper = client.ask([user("sub")])
    seed = client.job.sampling_seed
    assert [first.request.seed, parallel[0].request.seed] == [
        derive_seed(seed, "turn", 0),
        derive_seed(seed, "turn", 1),
    ]
    seeds = [request.seed for request in client.requests]
    assert len(set(seeds)) == len(seeds) == 6
    again = Client()  # the same calls in another order: equal but for the native seeds and for identical calls
    again.answer(again.ask([user("Q")]), "one")
    again_helper, again_b = again.ask([user("sub")]), None
    again.ask([user("Q"), reply, user("a")])
    again_b = again.ask([user("Q"), reply, user("b")])
    assert (again_helper.request.seed, again_b.request.seed) == (helper.request.seed, parallel[1].request.seed)
    assert again.ask([user("Q")]).request.seed == same.request.seed


def test_the_runs_sampling_is_forced_and_the_smaller_limit_of_tokens_holds() -> None:
    client = Client(char_agent(max_turn_tokens=20))
    limits = [client.ask([user("Q")], max_tokens=limit).request.sampling.max_new_tokens for limit in (None, 64_000, 5)]
    assert limits == [20, 20, 5]
    asked = client.ask([user("Q")], max_tokens=3)
    reply = client.conversations.answered(asked, sample(asked.request, ["hello"]))
    assert isinstance(reply, CallReply)
    assert (reply.message.content, reply.finish, reply.completion_tokens) == ("hel", ReplyFinish.LENGTH, 3)
    client.conversations.delivered(asked)
    client.say([user("Q"), reply.message, user("more")], "x")  # such a reply does not end the episode
    (row,) = client.episode().rows
    assert "".join(show(row.token_ids)) == "<user>Q<end><assistant>hel<end><user>more<end><assistant>x<end>"


@pytest.mark.parametrize(
    "stop, content, kept",
    [
        (("tion:",), "I look. Observa", "I look. Observation:"),
        (("zz", "Obs", "look"), "I ", "I look"),
        (("\n",), "I look. Observation: a cat", None),
        (("",), "I look. Observation: a cat", None),
    ],
)
def test_a_reply_ends_before_a_stop_text_and_keeps_the_tokens_that_complete_it(
    stop: tuple[str, ...], content: str, kept: str | None
) -> None:
    client, text = Client(), "I look. Observation: a cat"
    asked = client.ask([user("Q")], stop=stop)
    generation = sample(asked.request, [text])
    reply = client.conversations.answered(asked, generation)
    assert isinstance(reply, CallReply)
    assert (reply.message.content, reply.finish) == (content, ReplyFinish.STOP)
    assert reply.completion_tokens == (len(kept) if kept else len(text) + 1) == len(reply.logprobs)
    client.conversations.delivered(asked)
    client.say([user("Q"), reply.message, user("more")], "x")  # still the same conversation
    trajectory = client.episode()
    (row,) = trajectory.rows
    assert "".join(show(row.token_ids)) == f"<user>Q<end><assistant>{kept or text}<end><user>more<end><assistant>x<end>"
    assert row.behavior_logprobs[4 : 4 + len(kept or text)] == generation.behavior_logprobs[: len(kept or text)]
    assert trajectory.tree.cost.tokens_generated == len(text) + 1 + 2  # also what was sampled after the stop text


def test_version_spans_are_cut_with_the_tokens() -> None:
    client = Client()
    asked = client.ask([user("Q")], stop=("c",))
    generation = replace(sample(asked.request, ["abcd"]), version_spans=(VersionSpan(3, 2), VersionSpan(4, 3)))
    assert isinstance(client.conversations.answered(asked, generation), CallReply)
    client.conversations.delivered(asked)
    (row,) = client.episode().rows
    assert [(part.policy_version, len(part)) for part in row.segments if part.trains] == [(3, 2), (4, 1)]


def test_a_full_context_is_refused_and_a_shorter_conversation_goes_on() -> None:
    client = Client(char_agent(max_turn_tokens=10, max_context_tokens=40))
    reply = client.say([user("Q")], "one")
    refused = client.refusal([user("Q"), reply, user("x" * 40)])
    assert (refused.kind, refused.reason) == (
        RefusalKind.CONTEXT_FULL,
        "The conversation leaves no room for a reply within the context window.",
    )
    assert client.refusal([user("x" * 40)]).kind is RefusalKind.CONTEXT_FULL
    asked = client.ask([user("short")])
    full = replace(sample(asked.request), token_ids=(), behavior_logprobs=(), context_is_full=True)
    refused_by_engine = client.conversations.answered(asked, full)
    assert isinstance(refused_by_engine, CallRefused)
    assert refused_by_engine.kind is RefusalKind.CONTEXT_FULL
    client.say([user("Q"), reply, user("y")])
    assert len(client.episode().turns) == 2


def test_calls_beyond_the_turn_limit_are_refused_and_a_dropped_one_does_not_count() -> None:
    client = Client(max_turns=2)
    client.say([user("Q")])
    dropped = client.ask([user("Q")])
    assert client.refusal([user("Q")]).kind is RefusalKind.TURN_LIMIT
    client.conversations.dropped(dropped)
    client.say([user("Q")])
    assert client.refusal([user("Q")]).reason == "All 2 turns of the episode are used."
    assert client.conversations.spent.refusals == {RefusalKind.TURN_LIMIT: 2}


def test_a_reply_that_was_not_delivered_is_no_turn_and_its_tokens_are_counted() -> None:
    client = Client()
    reply = client.say([user("Q")], "one")
    asked = client.ask([user("Q"), reply, user("more")])
    lost = client.conversations.answered(asked, sample(asked.request, ["lost"]))
    assert isinstance(lost, CallReply)
    client.conversations.dropped(asked)
    client.say([user("Q"), reply, user("more")], "two")
    unanswered = client.ask([user("Q")])
    trajectory = client.episode()  # closes: a call under way is dropped too
    assert [str(turn.outcome.action) for turn in trajectory.turns if turn.outcome] == ["one", "two"]
    assert trajectory.tree.cost.tokens_generated == 4 + 5 + 4
    late = client.conversations.answered(unanswered, sample(unanswered.request, ["late"]))
    assert isinstance(late, CallRefused)
    assert late.kind is RefusalKind.CLOSED
    client.conversations.delivered(unanswered)
    assert len(client.conversations.turns) == 2
    assert client.conversations.spent.cost.tokens_generated == 5 + 5
    assert client.refusal([user("Q")]).kind is RefusalKind.CLOSED


def test_a_call_that_goes_on_from_a_reply_shows_that_it_was_delivered() -> None:
    client = Client()
    asked = client.ask([user("Q")])
    reply = client.conversations.answered(asked, sample(asked.request, ["one"]))
    assert isinstance(reply, CallReply)
    client.say([user("Q"), reply.message, user("more")], "two")
    client.conversations.dropped(asked)  # too late
    client.conversations.delivered(asked)
    assert [str(turn.action) for turn in client.conversations.turns] == ["one", "two"]
    assert len(client.episode().rows) == 1


def test_a_policy_that_fails_ends_the_episode() -> None:
    client = Client()
    asked = client.ask([user("Q")])
    bad = replace(sample(asked.request, ["one"]), behavior_logprobs=(float("nan"),) * 4)
    refused = client.conversations.answered(asked, bad)
    assert isinstance(refused, CallRefused)
    assert refused.kind is RefusalKind.POLICY_FAILED
    assert client.conversations.failure is not None
    assert client.conversations.failure.ending is Ending.ERROR_POLICY
    assert client.refusal([user("Q")]).kind is RefusalKind.CLOSED
    assert client.conversations.turns == ()


def test_an_aborted_generation_ends_the_episode_as_aborted() -> None:
    client = Client()
    asked = client.ask([user("Q")])
    aborted = replace(sample(asked.request, ["one"]), finish_reason=FinishReason.ABORT)
    assert isinstance(client.conversations.answered(asked, aborted), CallRefused)
    assert client.conversations.failure is not None
    assert client.conversations.failure.ending is Ending.ERROR_ABORTED


def test_messages_that_cannot_be_rendered_are_refused_and_do_not_end_the_episode() -> None:
    class Strict(CharRenderer):
        def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendering:
            if messages[0].role is Role.SYSTEM:
                raise ValueError("no system messages")
            return super().start(messages, tools)

    client = Client(char_agent(Strict()))
    refused = client.refusal([Message(role=Role.SYSTEM, content="S"), user("Q")])
    assert refused.kind is RefusalKind.UNSUPPORTED
    assert "no system messages" in refused.reason
    client.say([user("Q")])


def test_a_call_that_cannot_be_read_is_given_back_as_text_and_counted() -> None:
    client = Client()
    asked = client.ask([user("Q")])
    reply = client.conversations.answered(asked, sample(asked.request, ["plain <tool_call>{"]))
    assert isinstance(reply, CallReply)
    assert (reply.finish, reply.message.tool_calls, len(reply.malformed)) == (ReplyFinish.STOP, (), 1)


def test_rewards_go_to_the_turn_delivered_last_and_those_before_the_first_to_the_last() -> None:
    client = Client()
    client.conversations.pay(Scored(value=8.0))
    main = [user("Q"), client.say([user("Q")], "one")]
    client.conversations.pay(Scored(value=1.0))
    client.say([user("sub")], "helper")
    client.conversations.pay(Scored(value=2.0))
    client.conversations.pay(Scored(value=0.5, components={"part": 1.0}))
    client.say([*main, user("more")], "two")
    trajectory = client.episode(Scored(value=4.0))
    rewards = {str(turn.outcome.action): turn.outcome.reward for turn in trajectory.turns if turn.outcome}
    assert rewards == {
        "helper": Scored(value=2.5, components={"part": 1.0}),
        "one": Scored(value=1.0),
        "two": Scored(value=12.0),
    }
    assert list(rewards) == ["helper", "one", "two"]  # rows in the order of their last turns
    assert trajectory.reward == Scored(value=15.5, components={"part": 1.0})


def test_log_probs_and_numbers_of_tokens_are_in_the_reply() -> None:
    client = Client()
    asked = client.ask([user("Q")])
    generation = replace(sample(asked.request, ["one"]), num_prefilled=1)
    reply = client.conversations.answered(asked, generation)
    assert isinstance(reply, CallReply)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (4, 4, 3)
    assert (reply.token_strings, reply.logprobs) == (("o", "n", "e", "<end>"), generation.behavior_logprobs)
