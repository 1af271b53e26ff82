"""Episodes at the level of messages."""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from envgym import Action, Ending, Invalid, Message, Role, Scored, ToolCall
from envgym.agents.loop.agent import AgentSettings, OnLength
from envgym.agents.protocols import FinishReason, Sampling
from envgym.agents.rollout.messages import MessagePolicy, MessageReply, MessageRequest, run_message_episode
from envgym.agents.rollout.pool import AbortHandle, run_pool
from envgym.config.plugins import Choice
from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.trajectory import Trajectory, trajectories
from envgym.errors import PolicyFailure
from tests.support.parrots import CALL, Parrot, parrot_job

NATIVE = AgentSettings()
TEXT = AgentSettings(text_format=Choice(name="hermes"))


class Scripted(MessagePolicy):
    def __init__(self, *replies: MessageReply | Exception | str) -> None:
        self.replies = list(replies)
        self.requests: list[MessageRequest] = []

    async def reply(self, request: MessageRequest) -> MessageReply:
        self.requests.append(request)
        said = self.replies[len(self.requests) - 1]
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, MessageReply) else reply(Action(said))


def reply(action: Action, *, prompt: int = 10, finish: FinishReason = FinishReason.STOP) -> MessageReply:
    return MessageReply(action=action, finish_reason=finish, prompt_tokens=prompt, cached_tokens=4, completion_tokens=3)


def episode(policy: Scripted, settings: AgentSettings = NATIVE, env: Parrot | None = None) -> Trajectory:
    job = parrot_job(lambda: env or Parrot(system_prompt="S"))
    (trajectory,) = trajectories(
        asyncio.run(run_message_episode(job, settings, policy, sampling=Sampling(), clock=lambda: 0.0))
    )
    return trajectory


def contents(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(message.role.value, message.content) for message in messages]


def test_native_calls_are_run_and_the_conversation_grows() -> None:
    call = ToolCall(name="look", arguments={"at": "cat"}, id="c1")
    policy = Scripted(reply(Action("", tool_calls=[call])), "bye")
    trajectory = episode(policy, AgentSettings(system_prompt="Own."))
    assert trajectory.ending is Ending.TERMINATED
    assert trajectory.reward == Scored(value=0.25)
    first, second = policy.requests
    assert [spec.name for spec in first.tools] == ["look"]
    assert contents(first.messages) == [("system", "Own.\n\nS"), ("user", "Q")]
    assert trajectory.tree.messages == first.messages
    assert tree_from_json(tree_to_json(trajectory.tree)).messages == first.messages
    assert second.messages[2:] == (
        Message(role=Role.ASSISTANT, content="", tool_calls=(call,)),
        Message(role=Role.TOOL, content="a cat", tool_call_id="c1", name="look"),
    )


def test_calls_in_the_text_are_read_and_answered_by_the_user() -> None:
    policy = Scripted(CALL, "bye")
    trajectory = episode(policy, TEXT)
    assert trajectory.turns[0].outcome is not None
    assert trajectory.turns[0].outcome.action.tool_calls[0].name == "look"
    first, second = policy.requests
    assert first.tools == ()
    assert "<tool_call>" in first.messages[0].content, "the system message says how tools are called"
    assert contents(second.messages[2:]) == [("assistant", CALL), ("user", "a cat")]


def test_the_tree_has_outcomes_and_costs_and_no_segments() -> None:
    tree = episode(Scripted("a", "bye")).tree
    assert all(not node.edge.segments for node in tree.nodes)
    assert [node.edge.ends_turn for node in tree.nodes] == [False, True, True]
    assert (tree.cost.tokens_generated, tree.cost.tokens_prefilled, tree.cost.env_steps) == (6, 12, 2)
    assert tree_from_json(tree_to_json(tree)) == tree


def test_a_cut_reply_ends_the_episode_or_is_answered_as_the_agent_says() -> None:
    cut = reply(Action("hal"), finish=FinishReason.LENGTH)
    ended = episode(Scripted(cut))
    assert (ended.ending, len(ended.turns)) == (Ending.TRUNCATED_TOKENS, 0)
    going_on = episode(Scripted(cut, "bye"), AgentSettings(on_length=OnLength.CLOSE))
    assert (going_on.ending, len(going_on.turns)) == (Ending.TERMINATED, 2)


def test_a_full_context_ends_the_episode_before_or_after_a_turn() -> None:
    full = MessageReply(action=Action(), finish_reason=FinishReason.LENGTH, context_is_full=True)
    settings = AgentSettings(on_length=OnLength.CLOSE)
    assert episode(Scripted(full), settings).ending is Ending.TRUNCATED_TOKENS
    # 10 + 3 used, and 256 for another turn: 269 > 268.
    counted = AgentSettings(max_turn_tokens=256, max_context_tokens=268)
    trajectory = episode(Scripted("a"), counted)
    assert (trajectory.ending, len(trajectory.turns)) == (Ending.TRUNCATED_TOKENS, 1)


@pytest.mark.parametrize("error", [PolicyFailure("gone"), KeyError("x")])
def test_an_endpoint_that_fails_is_an_invalid_episode(error: Exception) -> None:
    trajectory = episode(Scripted("a", error))
    assert trajectory.ending is Ending.ERROR_POLICY
    assert isinstance(trajectory.reward, Invalid)
    assert len(trajectory.turns) == 1


def test_an_env_that_fails_is_an_invalid_episode() -> None:
    assert episode(Scripted("crash")).ending is Ending.ERROR_ENV


def test_many_episodes_keep_their_order_and_each_turn_its_seed() -> None:
    class Parting(Scripted):
        async def reply(self, request: MessageRequest) -> MessageReply:
            self.requests.append(request)
            await asyncio.sleep(0)
            return reply(Action("bye"))

    policy = Parting()
    jobs = [parrot_job(seed=seed, tree_id=f"t{seed}") for seed in range(7)]
    run = partial(run_message_episode, settings=NATIVE, policy=policy, sampling=Sampling())
    trees = asyncio.run(run_pool(jobs, run, concurrency=3))
    assert [tree.id for tree in trees] == [f"t{seed}" for seed in range(7)]
    assert len({request.seed for request in policy.requests}) == 7


def test_a_conversation_can_be_aborted_and_what_was_said_is_kept() -> None:
    class Stuck(Scripted):
        """Replies once, and never again."""

        async def reply(self, request: MessageRequest) -> MessageReply:
            if self.requests:
                asyncio.get_running_loop().call_soon(abort.abort, "too slow")
                await asyncio.Event().wait()
            return await super().reply(request)

    abort = AbortHandle()
    running = run_message_episode(parrot_job(), NATIVE, Stuck("a"), sampling=Sampling(), abort=abort)
    (trajectory,) = trajectories(asyncio.run(asyncio.wait_for(running, 10)))
    assert trajectory.reward == Invalid(cause=Ending.ERROR_ABORTED, reason="too slow")
    assert len(trajectory.turns) == 1
