"""Which tokens an episode holds, exactly: the turns drawn as text, the masks listed from them."""

import asyncio

import pytest

from envgym import Action, Ending, Message, Observation, Role, Scored
from envgym.agents.loop.agent import Agent
from envgym.agents.loop.state import (
    AgentState,
    Event,
    FailureEvent,
    Finished,
    Generate,
    GenerationEvent,
    Phase,
    ResetEvent,
    StepEnv,
    StepEvent,
    advance,
    begin,
)
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import FinishReason, Sampling
from envgym.agents.rollout.driver import run_episode
from envgym.agents.rollout.recorder import record_tree
from envgym.core.segments import Origin
from envgym.core.trajectory import trajectories
from envgym.errors import InvalidInput
from envgym.records import ResetRecord, StepRecord, step_result
from tests.agents.episodes import drawn, episode, generation
from tests.support.parrots import CALL, Parrot, char_agent, parrot_job, said

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


# ---- the state machine ----------------------------------------------------------------------------------------------


def started(agent: Agent, prompt: str = "Q") -> AgentState:
    job = parrot_job(prompt=prompt)
    record = ResetRecord(task=job.task, observation=Observation(prompt), system_prompt="", tools=(), seed=7)
    state, request = advance(begin(agent, sampling=Sampling(), seed=1), ResetEvent(record))
    assert isinstance(request, Generate)
    return state


def stepped(action: Action, observation: str, ending: Ending | None = None) -> StepEvent:
    record = StepRecord(
        turn=0,
        action=action,
        observation=Observation(observation),
        reward=Scored(value=0.25),
        ending=ending,
        tool_calls=0,
        tool_errors=0,
    )
    return StepEvent(step_result(record))


def play(state: AgentState, *texts: str, last: Ending | None = None) -> AgentState:
    """Feed a turn for each text; the env ends the last one as `last`."""
    for place, text in enumerate(texts):
        state, request = advance(state, GenerationEvent(generation(text, FinishReason.STOP)))
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
    assert right.path.path()[:3] == left.path.path()[:3]

    tree = record_tree([left.path, right.path], parrot_job())
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
    state, request = advance(state, GenerationEvent(generation("a", FinishReason.STOP), seconds=0.5))
    assert isinstance(request, StepEnv)
    answer = stepped(request.action, "!", Ending.TERMINATED)
    state, _ = advance(state, StepEvent(answer.result, seconds=0.25))
    assert state.path is not None
    assert state.path.edge.cost.seconds == 0.75


@pytest.mark.parametrize("event", [GenerationEvent(generation("a", FinishReason.STOP)), stepped(Action("a"), "!")])
def test_an_event_that_was_not_asked_for_is_refused(event: Event) -> None:
    with pytest.raises(InvalidInput, match="event must answer the state's phase STARTING"):
        advance(begin(char_agent(), sampling=Sampling(), seed=0), event)


def test_a_finished_agent_takes_no_further_event() -> None:
    state, request = advance(started(char_agent()), FailureEvent(Ending.TRUNCATED_TIME, "late"))
    assert request == Finished(Ending.TRUNCATED_TIME, None)
    assert state.phase is Phase.FINISHED
    with pytest.raises(InvalidInput, match="FINISHED"):
        advance(state, FailureEvent(Ending.ERROR_ABORTED, "again"))


def test_append_cost_of_the_history_does_not_copy_it() -> None:
    state = play(started(char_agent()), *["a"] * 50)
    assert len(state.history) == 1 + 2 * 50
    assert state.history._tail == (Action("a").message, Message(role=Role.USER, content="a!"))
