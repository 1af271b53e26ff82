"""Which tokens an episode holds, exactly: the turns drawn as text, the masks listed from them."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.agent import Agent, OnLength
from envgym.agents.context import ContextStrategyName
from envgym.agents.driver import run_episode
from envgym.agents.events import Event, Failed, Finished, Generate, Generated, Started, StepEnv, Stepped
from envgym.agents.loop import AgentState, Phase, advance, begin
from envgym.agents.path import tree_of
from envgym.agents.policies.scripted import Said, ScriptedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Rendering, Sampling
from envgym.agents.testing import CALL, CharRenderer, Parrot, char_agent, encode, parrot_job, said, show
from envgym.core.endings import Ending
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.rewards import Invalid, Scored
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Row, Trajectory, trajectories
from envgym.core.tree import Rewrite
from envgym.errors import InvalidInput
from envgym.records import ResetRecord, StepRecord, step_result


def episode(
    replies: Iterable[Said], agent: Agent | None = None, env: Parrot | None = None, prompt: str = "Q"
) -> tuple[Trajectory, ScriptedPolicy]:
    policy = ScriptedPolicy(replies, version=3)
    job = parrot_job(lambda: env or Parrot(), prompt=prompt)
    tree = asyncio.run(run_episode(job, agent or char_agent(), policy, sampling=Sampling(), clock=lambda: 0.0))
    (trajectory,) = trajectories(tree)
    return trajectory, policy


def drawn(row: Row) -> tuple[str, str]:
    """Return the row as text, and below each token T where it trains, else a dot."""
    text = "".join(show(row.token_ids))
    marks = "".join(
        ("T" if trains else ".") * len(shown) for shown, trains in zip(show(row.token_ids), row.loss_mask, strict=True)
    )
    return text, marks


# ---- the tokens of a good episode -----------------------------------------------------------------------------------


def test_sampled_tokens_and_nothing_else_train() -> None:
    trajectory, _ = episode([said("a"), said("bye")], env=Parrot(system_prompt="S"))
    (row,) = trajectory.rows
    text, marks = drawn(row)
    assert text + "\n" + marks == (
        "<system>S<end><user>Q<end><assistant>a<end><user>a!<end><assistant>bye<end>\n"
        ".....................................TTTTTT........................TTTTTTTT"
    )
    assert [(s.origin.value, "".join(s.token_strings)) for s in row.segments] == [
        ("PROMPT", "<system>S<end><user>Q<end>"),
        ("TEMPLATE", "<assistant>"),
        ("POLICY", "a<end>"),
        ("TEMPLATE", "<user>"),
        ("TOOL", "a!"),
        ("TEMPLATE", "<end><assistant>"),
        ("POLICY", "bye<end>"),
    ]
    assert trajectory.ending is Ending.TERMINATED
    assert trajectory.reward == Scored(value=0.5)  # 2 turns x 0.25
    assert [turn.index for turn in trajectory.turns] == [0, 1]


def test_an_edge_is_a_turn_and_holds_the_opening_of_the_next() -> None:
    trajectory, _ = episode([said("a"), said("bye")])
    root, first, last = (trajectory.tree.nodes[index].edge for index in trajectory.path)
    assert (root.ends_turn, first.ends_turn, last.ends_turn) == (False, True, True)
    assert [s.origin for s in first.segments] == [Origin.POLICY, Origin.TEMPLATE, Origin.TOOL, Origin.TEMPLATE]
    assert [s.origin for s in last.segments] == [Origin.POLICY]


def test_a_tool_call_is_run_and_its_answer_is_a_tool_segment() -> None:
    trajectory, _ = episode([said(CALL), said("bye")])
    first = trajectory.turns[0]
    assert first.outcome is not None
    assert first.outcome.action.tool_calls[0].arguments == {"at": "cat"}
    assert first.outcome.observation.messages == (Message(role=Role.TOOL, content="a cat", name="look"),)
    assert ["".join(s.token_strings) for s in first.segments] == [f"{CALL}<end>", "<tool>", "a cat", "<end><assistant>"]
    assert (first.cost.tool_calls, first.cost.env_steps, first.cost.tokens_generated) == (1, 1, len(CALL) + 1)


def test_a_malformed_call_is_answered_and_the_episode_goes_on() -> None:
    trajectory, _ = episode([said("<tool_call>{oops</tool_call>"), said("bye")])
    first = trajectory.turns[0]
    assert first.outcome is not None
    assert first.outcome.tool_errors == 1
    assert "could not be read" in first.outcome.observation
    assert trajectory.ending is Ending.TERMINATED


# ---- endings --------------------------------------------------------------------------------------------------------


def test_turn_limit_ends_as_truncated_with_its_reward() -> None:
    trajectory, _ = episode([said("a"), said("b")], env=Parrot(max_turns=2))
    assert trajectory.ending is Ending.TRUNCATED_TURNS
    assert trajectory.reward == Scored(value=0.5)


def test_a_turn_that_reaches_its_token_limit_ends_the_episode_and_keeps_its_tokens() -> None:
    trajectory, _ = episode([said("a"), said("much too long")], char_agent(max_turn_tokens=4))
    leaf = trajectory.tree.nodes[trajectory.leaf]
    assert (leaf.ending, leaf.outcome, leaf.edge.ends_turn) == (Ending.TRUNCATED_TOKENS, None, False)
    assert [s.token_ids for s in leaf.edge.segments] == [encode("much")]
    assert leaf.edge.cost.tokens_generated == 4
    assert trajectory.reward == Scored(value=0.25)  # the first turn's


def test_an_unfinished_turn_can_be_closed_by_the_template_and_answered() -> None:
    agent = char_agent(max_turn_tokens=4, on_length=OnLength.CLOSE)
    trajectory, _ = episode([said("much too long"), said("bye")], agent)
    (row,) = trajectory.rows
    text, marks = drawn(row)
    assert text + "\n" + marks == (
        "<user>Q<end><assistant>much<end><user>much!<end><assistant>bye<end>\n"
        ".......................TTTT................................TTTTTTTT"
    )
    assert trajectory.ending is Ending.TERMINATED


def test_a_prompt_that_does_not_fit_ends_before_the_first_turn() -> None:
    # "<user>" + 8 characters + "<end>" + "<assistant>" = 11 tokens, and a turn of 4: 15 > 14
    trajectory, policy = episode([], char_agent(max_turn_tokens=4, max_context_tokens=14), prompt="12345678")
    assert (trajectory.ending, len(trajectory.tree.nodes)) == (Ending.TRUNCATED_TOKENS, 1)
    assert policy.requests == []
    fits, _ = episode([said("bye")], char_agent(max_turn_tokens=4, max_context_tokens=15), prompt="12345678")
    assert fits.ending is Ending.TERMINATED


def test_a_context_without_room_for_another_turn_ends_after_the_answered_one() -> None:
    # prompt 4, "a<end>" 2, "<user>a!<end><assistant>" 5: the next context has 11, and a turn of 4 makes 15
    trajectory, _ = episode([said("a")], char_agent(max_turn_tokens=4, max_context_tokens=14))
    leaf = trajectory.tree.nodes[trajectory.leaf]
    assert leaf.ending is Ending.TRUNCATED_TOKENS
    assert leaf.outcome is not None
    assert leaf.outcome.observation == "a!"
    assert [s.origin for s in leaf.edge.segments] == [Origin.POLICY]


@pytest.mark.parametrize(
    "word, ending, reason",
    [("crash", Ending.ERROR_ENV, "the parrot fell"), ("unplug", Ending.ERROR_TOOL_INFRA, "the perch lost power")],
)
def test_a_broken_env_is_an_invalid_reward_and_keeps_the_turn(word: str, ending: Ending, reason: str) -> None:
    trajectory, _ = episode([said("a"), said(word)])
    leaf = trajectory.tree.nodes[trajectory.leaf]
    assert leaf.ending is ending
    assert reason in (leaf.error or "")
    assert isinstance(trajectory.reward, Invalid)
    assert [s.token_ids for s in leaf.edge.segments] == [said(word)]


def test_a_policy_that_fails_ends_the_episode_with_an_empty_leaf() -> None:
    trajectory, _ = episode([said("a"), RuntimeError("no engine")])
    leaf = trajectory.tree.nodes[trajectory.leaf]
    assert (leaf.ending, leaf.edge.segments) == (Ending.ERROR_POLICY, ())
    assert leaf.error == "generation failed: RuntimeError: no engine"
    assert len(trajectory.turns) == 1


def generation(text: str, finish_reason: FinishReason, logprob: float = -0.5) -> Generation:
    return Generation(
        token_ids=encode(text),
        behavior_logprobs=(logprob,) * len(text),
        raw_logprobs=None,
        finish_reason=finish_reason,
        policy_version=3,
        num_prefilled=9,
    )


def test_an_aborted_generation_keeps_what_was_sampled() -> None:
    trajectory, _ = episode([generation("hal", FinishReason.ABORT)])
    leaf = trajectory.tree.nodes[trajectory.leaf]
    assert leaf.ending is Ending.ERROR_ABORTED
    assert [s.token_ids for s in leaf.edge.segments] == [encode("hal")]
    assert (leaf.edge.cost.tokens_generated, leaf.edge.cost.tokens_prefilled) == (3, 9)
    nothing, _ = episode([generation("", FinishReason.ABORT)])
    assert nothing.tree.nodes[nothing.leaf].edge.segments == ()


def test_a_token_that_nobody_knows_is_a_failure_of_the_policy_and_is_paid_for() -> None:
    trajectory, _ = episode([said("a")], char_agent(Broken("strings")))
    assert trajectory.ending is Ending.ERROR_POLICY
    assert trajectory.tree.cost.tokens_generated == 2


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf")])
def test_a_log_prob_that_is_not_finite_is_a_failure_of_the_policy(logprob: float) -> None:
    trajectory, _ = episode([generation("a", FinishReason.STOP, logprob)])
    assert trajectory.ending is Ending.ERROR_POLICY
    assert "not finite" in (trajectory.tree.nodes[trajectory.leaf].error or "")


def test_a_generation_without_tokens_is_a_failure_of_the_policy() -> None:
    trajectory, _ = episode([generation("", FinishReason.STOP)])
    assert trajectory.ending is Ending.ERROR_POLICY


class Broken(CharRenderer):
    """Fails where it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def start(self, messages: Sequence[Message], tools: object) -> Rendering:
        if self.where == "start":
            raise ValueError("no template")
        return super().start(messages, ())

    def extend(
        self, history: Sequence[Message], generation: Generation, observation: Observation, tools: object
    ) -> Rendering:
        if self.where == "extend":
            raise ValueError("no template")
        rendering = super().extend(history, generation, observation, ())
        if self.where == "forge":
            forged = Segment(origin=Origin.POLICY, token_ids=(1,), behavior_logprobs=(0.0,), policy_version=0)
            return Rendering(segments=(*rendering.segments, forged))
        return rendering

    def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        if self.where == "strings":
            raise IndexError("no such token")
        return super().token_strings(token_ids)

    def parse(self, token_ids: Sequence[int]) -> Action:
        if self.where == "parse":
            raise ValueError("no parser")
        return super().parse(token_ids)


@pytest.mark.parametrize("where, num_sampled, num_turns", [("start", 0, 0), ("parse", 2, 1), ("extend", 2, 1)])
def test_a_renderer_that_fails_ends_one_episode_and_loses_no_token(
    where: str, num_sampled: int, num_turns: int
) -> None:
    trajectory, _ = episode([said("a")], char_agent(Broken(where)))
    assert trajectory.ending is Ending.ERROR_POLICY
    assert (trajectory.num_sampled, len(trajectory.turns)) == (num_sampled, num_turns)


def test_a_renderer_cannot_pass_off_its_tokens_as_sampled() -> None:
    trajectory, _ = episode([said("a")], char_agent(Broken("forge")))
    assert trajectory.ending is Ending.ERROR_POLICY
    assert trajectory.num_sampled == 2


# ---- rewrites -------------------------------------------------------------------------------------------------------


def test_dropping_the_oldest_turns_starts_a_row_whose_context_is_all_prompt() -> None:
    # The prompt has 4 tokens; a turn of 4 characters adds 5 sampled and 8 rendered. Before turn 2 the context would
    # have 4 + 13 + 13 = 30 > 40 - 12; without turn 0 it has 17.
    agent = char_agent(max_turn_tokens=12, max_context_tokens=40, context=ContextStrategyName.DROP_OLDEST_TURNS)
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


def test_nothing_left_to_drop_ends_the_episode() -> None:
    agent = char_agent(max_turn_tokens=12, max_context_tokens=28, context=ContextStrategyName.DROP_OLDEST_TURNS)
    trajectory, _ = episode([said("one1")], agent)  # 17 > 28 - 12, and the last turn stays
    assert trajectory.ending is Ending.TRUNCATED_TOKENS
    assert len(trajectory.turns) == 1


def test_dropping_thinking_keeps_what_was_said() -> None:
    agent = char_agent(max_turn_tokens=40, max_context_tokens=80, context=ContextStrategyName.DROP_THINKING)
    trajectory, _ = episode([said("<think>hmm hmm hmm hmm</think>one"), said("bye")], agent)
    assert [row.rewrite for row in trajectory.rows] == [None, Rewrite.THINKING_DROPPED]
    assert "".join(show(trajectory.rows[1].token_ids)) == (
        "<user>Q<end><assistant>one<end><user>one!<end><assistant>bye<end>"
    )


def test_a_template_that_forgets_thinking_is_recorded_as_a_rewrite() -> None:
    agent = char_agent(CharRenderer(drops_thinking=True))
    trajectory, _ = episode([said("<think>x</think>a"), said("b"), said("bye")], agent)
    first, second = trajectory.rows
    assert "".join(show(first.token_ids)) == "<user>Q<end><assistant><think>x</think>a<end>"
    assert "".join(show(second.token_ids)) == (
        "<user>Q<end><assistant>a<end><user>a!<end><assistant>b<end><user>b!<end><assistant>bye<end>"
    )
    assert second.rewrite is Rewrite.THINKING_DROPPED
    assert sum(sum(row.loss_mask) for row in trajectory.rows) == trajectory.num_sampled == 18 + 2 + 4


# ---- the state machine ----------------------------------------------------------------------------------------------


def started(agent: Agent, prompt: str = "Q") -> AgentState:
    job = parrot_job(prompt=prompt)
    record = ResetRecord(task=job.task, observation=Observation(prompt), system_prompt="", tools=(), seed=7)
    state, request = advance(begin(agent, sampling=Sampling(), seed=1), Started(record))
    assert isinstance(request, Generate)
    return state


def stepped(action: Action, observation: str, ending: Ending | None = None) -> Stepped:
    record = StepRecord(
        turn=0,
        action=action,
        observation=Observation(observation),
        reward=Scored(value=0.25),
        ending=ending,
        tool_calls=0,
        tool_errors=0,
    )
    return Stepped(step_result(record))


def play(state: AgentState, *texts: str, last: Ending | None = None) -> AgentState:
    """Feed a turn for each text; the env ends the last one as `last`."""
    for place, text in enumerate(texts):
        state, request = advance(state, Generated(generation(text, FinishReason.STOP)))
        assert isinstance(request, StepEnv)
        ending = last if place == len(texts) - 1 else None
        state, _ = advance(state, stepped(request.action, text + "!", ending))
    return state


def test_forking_an_agent_is_assignment_and_siblings_share_their_prefix() -> None:
    middle = play(started(char_agent()), "a", "b")
    left = play(middle, "left", last=Ending.TERMINATED)
    right = play(middle, "right", "end", last=Ending.TERMINATED)
    assert left.path is not None
    assert right.path is not None
    assert left.path.parent is middle.path
    assert right.path.line()[:3] == left.path.line()[:3]

    tree = tree_of([left.path, right.path], id="t", env_id="parrot", task=parrot_job().task, seed=7)
    assert len(tree.nodes) == 1 + 2 + 1 + 2  # root, the shared turns, and each branch's own
    one, other = trajectories(tree)
    assert one.path[:3] == other.path[:3] == (0, 1, 2)
    assert [turn.outcome.action for turn in other.turns if turn.outcome] == ["a", "b", "right", "end"]
    assert one.tree.nodes[2].edge is middle.path.edge  # type: ignore[union-attr]  # the path exists


def test_a_forked_state_is_not_changed_by_what_its_fork_does() -> None:
    middle = play(started(char_agent()), "a")
    before = (middle.context, middle.history.flat, middle.path, middle.num_turns)
    play(middle, "b", "c", last=Ending.TERMINATED)
    assert (middle.context, middle.history.flat, middle.path, middle.num_turns) == before


def test_each_turn_is_sampled_with_its_own_seed_and_its_twin_with_the_same() -> None:
    def seeds(seed: int) -> list[int]:
        policy = ScriptedPolicy([said("a"), said("b"), said("bye")])
        asyncio.run(run_episode(parrot_job(seed=seed), char_agent(), policy, sampling=Sampling()))
        return [request.seed for request in policy.requests]

    assert seeds(7) == seeds(7)
    assert len(set(seeds(7) + seeds(8))) == 6


def test_seconds_of_policy_and_env_are_the_turns_cost() -> None:
    state = started(char_agent())
    state, request = advance(state, Generated(generation("a", FinishReason.STOP), seconds=0.5))
    assert isinstance(request, StepEnv)
    answer = stepped(request.action, "!", Ending.TERMINATED)
    state, _ = advance(state, Stepped(answer.result, seconds=0.25))
    assert state.path is not None
    assert state.path.edge.cost.seconds == 0.75


@pytest.mark.parametrize("event", [Generated(generation("a", FinishReason.STOP)), stepped(Action("a"), "!")])
def test_an_event_that_was_not_asked_for_is_refused(event: Event) -> None:
    with pytest.raises(InvalidInput, match="event must answer the state's phase STARTING"):
        advance(begin(char_agent(), sampling=Sampling(), seed=0), event)


def test_a_finished_agent_takes_no_further_event() -> None:
    state, request = advance(started(char_agent()), Failed(Ending.TRUNCATED_TIME, "late"))
    assert request == Finished(Ending.TRUNCATED_TIME, None)
    assert state.phase is Phase.FINISHED
    with pytest.raises(InvalidInput, match="FINISHED"):
        advance(state, Failed(Ending.ERROR_ABORTED, "again"))


def test_append_cost_of_the_history_does_not_copy_it() -> None:
    state = play(started(char_agent()), *["a"] * 50)
    assert len(state.history) == 1 + 2 * 50
    assert state.history._tail == (Action("a").message, Message(role=Role.USER, content="a!"))


# ---- laws -----------------------------------------------------------------------------------------------------------

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
    strategy=st.sampled_from(ContextStrategyName),
    on_length=st.sampled_from(OnLength),
)
def test_what_is_trained_is_what_the_policy_was_given_and_what_it_sampled(
    turns: list[str], drops_thinking: bool, budget: int, strategy: ContextStrategyName, on_length: OnLength
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
