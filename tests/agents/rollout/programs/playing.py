"""A policy that is a function of its request, and programs that call it without HTTP."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event

from envgym import Action, Message, Role, ToolCall
from envgym.agents.loop.agent import Agent
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.programs.calls import Call, CallRefused, CallReply
from envgym.agents.rollout.programs.conversations import Conversations, OpenCall
from envgym.agents.rollout.programs.episode import run_program_episode
from envgym.agents.rollout.programs.layout import build_path
from envgym.agents.rollout.recorder import record_tree
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Ending, Reward, Scored
from envgym.records import first_messages
from envgym.seeds import derive_seed
from envgym.tools import ToolSpec
from tests.agents.rollout.programs import sample_programs
from tests.support.parrots import CALL, char_agent, parrot_job, said

LOOK = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})
WORDS = ("a", CALL, "<think>hm</think>up", f"<think>so</think>{CALL}{CALL}", "again", "bye")


def sample(request: GenerateRequest, words: Sequence[str] = WORDS) -> Generation:
    """Say one of the words, which the seed chooses, with log-probs that only this seed has."""
    token_ids = said(words[request.seed % len(words)])[: request.sampling.max_new_tokens]
    logprobs = tuple(-(derive_seed(request.seed, place) % 1000) / 1000 for place in range(len(token_ids)))
    is_over = token_ids[-1] in request.sampling.stop_token_ids
    return Generation(
        token_ids=token_ids,
        behavior_logprobs=logprobs,
        raw_logprobs=None,
        finish_reason=FinishReason.STOP if is_over else FinishReason.LENGTH,
        policy_version=3,
        num_prefilled=len(request.token_ids),
    )


def changed(message: Message) -> Message:
    """Return a message as clients send it back: an assistant's without thinking and ids, keys in another order."""
    if message.role is not Role.ASSISTANT:
        return message
    calls = tuple(
        ToolCall(name=call.name, arguments=dict(reversed(list(call.arguments.items())))) for call in message.tool_calls
    )
    return Message(role=message.role, content=f"{message.content} \n", tool_calls=calls)


class Client:
    """Calls the policy as a program does, every reply delivered."""

    def __init__(
        self,
        agent: Agent | None = None,
        job: EpisodeJob | None = None,
        *,
        max_turns: int = 64,
        compares_thinking: bool = False,
        policy: Callable[[GenerateRequest], Generation] = sample,
    ) -> None:
        self.job = job or parrot_job()
        self.conversations = Conversations(
            agent or char_agent(),
            sampling=Sampling(),
            seed=self.job.sampling_seed,
            task=self.job.task,
            max_turns=max_turns,
            compares_thinking=compares_thinking,
        )
        self.policy = policy
        self.requests: list[GenerateRequest] = []

    def ask(self, messages: Sequence[Message], tools: tuple[ToolSpec, ...] = (), **options: object) -> OpenCall:
        asked = self.conversations.ask(Call(messages=tuple(messages), tools=tools, **options))  # type: ignore[arg-type]
        assert isinstance(asked, OpenCall), asked
        self.requests.append(asked.request)
        return asked

    def answer(self, asked: OpenCall, text: str | None = None) -> Message:
        """Answer a call with a text, or with what the policy samples, and deliver it."""
        generation = self.policy(asked.request) if text is None else sample(asked.request, [text])
        reply = self.conversations.answered(asked, generation)
        assert isinstance(reply, CallReply), reply
        self.conversations.delivered(asked)
        return reply.message

    def say(self, messages: Sequence[Message], text: str | None = None, *, tools: tuple[ToolSpec, ...] = ()) -> Message:
        return self.answer(self.ask(messages, tools), text)

    def refusal(self, messages: Sequence[Message], **options: object) -> CallRefused:
        refused = self.conversations.ask(Call(messages=tuple(messages), **options))  # type: ignore[arg-type]  # as above
        assert isinstance(refused, CallRefused)
        return refused

    def episode(self, reward: Reward = Scored(value=1.0)) -> Trajectory:  # noqa: B008  # frozen
        conversations = self.conversations
        conversations.pay(reward)
        conversations.close()
        path = build_path(conversations.turns, conversations.rewards, Ending.TERMINATED, None, conversations.spent.cost)
        (trajectory,) = trajectories(record_tree((path.leaf,), self.job, setup=path.setup))
        return trajectory


def play_env(
    client: Client, max_turns: int = 20, noise: Callable[[Message], Message] = lambda message: message
) -> None:
    """Play the job's env as the native loop does: each reply is an action, and what the env replies is sent back."""
    env = client.job.make_env()
    record = env.reset(seed=client.job.seed, options={"task": client.job.task}).info["envgym"]
    messages = first_messages(record, record.system_prompt)
    for _ in range(max_turns):
        reply = client.say(messages, tools=record.tools)
        action = Action(reply.content, thinking=reply.thinking, tool_calls=reply.tool_calls)
        turn = env.step(action).info["envgym"]
        client.conversations.pay(turn.reward)
        messages = (*messages, noise(reply), *turn.observation.messages)
        if turn.ending is not None:
            break
    env.close()


def program_agent(function: str, *, max_context_tokens: int = 2000, **program: object) -> Agent:
    run = f"{sample_programs.__name__}:{function}"
    return char_agent(max_turn_tokens=150, max_context_tokens=max_context_tokens, program={"run": run, **program})


def play(
    function: str,
    policy: Callable[[GenerateRequest], Generation | Exception] | None = None,
    *,
    job: EpisodeJob | None = None,
    abort: AbortHandle | None = None,
    is_late: Event | None = None,
    max_context_tokens: int = 2000,
    **program: object,
) -> Trajectory:
    """Run an episode of a sample program; its time limit passes when `is_late` is set."""
    agent = program_agent(function, max_context_tokens=max_context_tokens, **program)
    generate = ScriptedPolicy(policy or partial(sample, words=["one"])).generate
    loop = JumpingLoop()
    if is_late is not None:
        is_late.clear()

    async def run() -> Tree:
        work = run_program_episode(job or parrot_job(), agent, generate, sampling=Sampling(), abort=abort)
        episode = asyncio.ensure_future(work)
        if is_late is not None:
            assert await asyncio.to_thread(is_late.wait, 60)
            loop.ahead_s = 1e6
        return await episode

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        (trajectory,) = trajectories(runner.run(run()))
    return trajectory


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test sets forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s
