"""Calls become rows: equal to the native loop's for a program that is that loop, exact for random forests."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym import Message, Role
from envgym.agents.loop.agent import Agent, AgentSettings, make_agent
from envgym.agents.models.tiny import tiny_tokenizer
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.agents.rollout.driver import run_episode
from envgym.agents.rollout.programs.conversations import OpenCall
from envgym.core.trajectory import Row, Trajectory, trajectories
from envgym.core.tree import Rewrite
from envgym.core.turns import Scored
from envgym.parsing import parse_action
from envgym.seeds import derive_seed
from tests.agents.rollout.programs.playing import Client, changed, play_env, sample
from tests.support.parrots import CALL, CharRenderer, Parrot, char_agent, parrot_job, show

Sample = Callable[[GenerateRequest], Generation]


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


# ---- the law --------------------------------------------------------------------------------------------------------


def in_tokens_of(agent: Agent) -> Sample:
    """Return a policy that says what `sample` says, in the tokens of the agent's model."""

    def sampled(request: GenerateRequest) -> Generation:
        chosen = sample(request)
        text = "".join(show(chosen.token_ids[:-1]))
        token_ids = agent.renderer.encode_action(parse_action(text))
        logprobs = tuple(-(derive_seed(request.seed, place) % 1000) / 1000 for place in range(len(token_ids)))
        return replace(chosen, token_ids=token_ids, behavior_logprobs=logprobs)

    return sampled


def native(agent: Agent, seed: int, policy: Sample) -> Trajectory:
    job, scripted = parrot_job(lambda: Parrot(system_prompt="S"), seed=seed), ScriptedPolicy(policy)
    tree = asyncio.run(run_episode(job, agent, scripted, sampling=Sampling(), clock=lambda: 0.0))
    (trajectory,) = trajectories(tree)
    return trajectory


def check_law(agent: Agent, seed: int, policy: Sample, noise: Callable[[Message], Message]) -> None:
    client = Client(agent, parrot_job(lambda: Parrot(system_prompt="S"), seed=seed), policy=policy)
    play_env(client, max_turns=100, noise=noise)
    program, other = client.episode(Scored(value=0.0)), native(agent, seed, policy)
    assert program.rows == other.rows
    assert program.reward == other.reward
    assert [turn.segments for turn in program.turns] == [turn.segments for turn in other.turns]
    assert (program.tree.messages, program.tree.tools) == (other.tree.messages, other.tree.tools)
    assert [node.outcome for node in program.tree.nodes[:-1]] == [node.outcome for node in other.tree.nodes[:-1]]
    assert program.tree.cost.tokens_generated == other.tree.cost.tokens_generated


@pytest.mark.parametrize("renderer", [CharRenderer(), CharRenderer(drops_thinking=True, lists_tools=True)])
@pytest.mark.parametrize("noise", [lambda message: message, changed])
@pytest.mark.parametrize("seed", range(8))
def test_a_program_that_is_the_native_loop_gives_its_rows(
    renderer: CharRenderer, noise: Callable[[Message], Message], seed: int
) -> None:
    check_law(char_agent(renderer), seed, sample, noise)


@pytest.mark.parametrize("text_format", [None, "react"])
def test_a_program_that_is_the_native_loop_gives_its_rows_in_the_tokens_of_a_model(text_format: str | None) -> None:
    settings = {"max_turn_tokens": 300, "max_context_tokens": 20_000, "on_length": "close", "text_format": text_format}
    agent = make_agent(AgentSettings.model_validate(settings), tiny_tokenizer())
    for seed in range(4):
        check_law(agent, seed, in_tokens_of(agent), changed)


# ---- forests of conversations ---------------------------------------------------------------------------------------


class Op(NamedTuple):
    """One call of a program."""

    parent: int
    """Which of the replies so far it goes on from, counted round; 0: a new conversation."""
    prompt: int
    is_noisy: bool
    waits: bool
    """Whether the reply is given only after the next call was made."""
    is_dropped: bool


OPS = st.lists(st.builds(Op, st.integers(0, 9), st.integers(0, 2), *[st.booleans()] * 3), min_size=1, max_size=14)


@given(ops=OPS, drops_thinking=st.booleans())
@settings(max_examples=60, deadline=None)
def test_random_forests_give_the_reference_rows_and_every_sampled_token_trains_once(
    ops: list[Op], drops_thinking: bool
) -> None:
    client = Client(char_agent(CharRenderer(drops_thinking=drops_thinking)))
    replies: list[tuple[Message, ...]] = [()]  # whole conversations that a program may go on from
    parents: list[int] = []  # of the replies after the first, 0: none
    waiting: list[tuple[OpenCall, tuple[Message, ...], int, bool]] = []
    texts = (f"<think>{place}</think>said {place}" if place % 3 else f"{place}{CALL}" for place in count())

    def answer() -> None:
        asked, messages, parent, is_dropped = waiting.pop(0)
        if is_dropped:
            client.conversations.answered(asked, sample(asked.request, [next(texts)]))
            client.conversations.dropped(asked)
        else:
            replies.append((*messages, client.answer(asked, next(texts))))
            parents.append(parent)

    for op in ops:
        parent = op.parent % len(replies)
        history = tuple(map(changed, replies[parent])) if op.is_noisy else replies[parent]
        messages = (*history, user(f"prompt {op.prompt}"))
        waiting.append((client.ask(messages), messages, parent, op.is_dropped))
        while waiting and not (op.waits and len(waiting) == 1):
            answer()
    while waiting:
        answer()
    delivered = client.conversations.turns
    if not delivered:
        return
    trajectory = client.episode()
    rewritten = sum(turn.rewrite is Rewrite.THINKING_DROPPED for turn in trajectory.turns)
    new_conversations, branches = parents.count(0), sum(n - 1 for parent, n in Counter(parents).items() if parent)
    assert len(trajectory.rows) == new_conversations + branches + rewritten
    assert len(trajectory.turns) == len(delivered)
    check_contexts(trajectory)
    trained = sorted(turn for row in trajectory.rows for turn in turns_of_row(row))
    assert trained == sorted(
        (client.requests[turn.call.number].token_ids, generation.token_ids, generation.behavior_logprobs)
        for turn in delivered
        if (generation := turn.state.generation) is not None
    )


def check_contexts(trajectory: Trajectory) -> None:
    """Check that the messages of each conversation are recorded: rendered, they are the prompt of its row."""
    messages, renderer = trajectory.tree.messages, CharRenderer()
    for row in trajectory.rows:
        edge = trajectory.tree.nodes[row.nodes[0]].edge
        if row.rewrite is Rewrite.CONVERSATION:
            messages = edge.context
        if row.rewrite in (None, Rewrite.CONVERSATION):
            assert _text(segment.token_ids for segment in renderer.start(messages, ()).segments) == _text(
                [row.token_ids[: row.loss_mask.index(True)]]
            )
        else:
            assert edge.context == ()


def _text(parts: Iterable[Sequence[int]]) -> str:
    """Return tokens as text without thinking, and with calls as the renderer writes those of earlier messages."""
    return re.sub(r"<think>.*?</think>", "", "".join("".join(show(ids)) for ids in parts)).replace(CALL, "{look}")


def turns_of_row(row: Row) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    """Yield for each run of sampled tokens of a row: all tokens before, the tokens, their log-probs."""
    start = 0
    for trains, run in groupby(row.loss_mask):
        end = start + len(list(run))
        if trains:
            yield row.token_ids[:start], row.token_ids[start:end], row.behavior_logprobs[start:end]
        start = end
