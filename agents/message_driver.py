"""Drive episodes at the level of messages, for models that are reached without tokens (hosted, or served elsewhere).

Their trees hold actions, observations, rewards and costs, and no segments: they can be evaluated, not trained on. When
the context is full the episode ends as TRUNCATED_TOKENS; what to leave out cannot be decided without counting tokens.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from envgym.agents.agent import (
    NATIVE,
    AgentSettings,
    OnLength,
    first_messages,
    own_system_prompt,
    text_format_name,
)
from envgym.agents.episode import Clock, EpisodeEnv, EpisodeJob
from envgym.agents.loop import turn_ending, turn_outcome
from envgym.agents.path import Link, tree_of
from envgym.agents.pool import run_pool
from envgym.agents.protocols import FinishReason, Sampling
from envgym.core.endings import Ending
from envgym.core.messages import Action, Message, Role
from envgym.core.tree import Edge, Tree
from envgym.core.turns import Cost
from envgym.errors import InfrastructureError, PolicyFailure
from envgym.parsing import text_format
from envgym.parsing.formats import TextFormat
from envgym.records import ResetRecord, StepRecord, ending_of
from envgym.seeds import derive_seed
from envgym.tools import ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequest:
    """One reply to ask for."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    """Those that the endpoint is to offer the model; none where the messages describe them."""
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReply:
    """What a model said, with what it cost."""

    action: Action
    finish_reason: FinishReason
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's tokens, those that the endpoint did not compute again."""
    completion_tokens: int = 0
    context_is_full: bool = False
    """The conversation is longer than the model takes; nothing was said."""


class MessagePolicy(Protocol):
    """Answers conversations."""

    async def reply(self, request: MessageRequest) -> MessageReply:
        """Answer one conversation. Raises: PolicyFailure: the endpoint broke."""
        ...


async def run_message_episodes(
    jobs: Sequence[EpisodeJob],
    settings: AgentSettings,
    policy: MessagePolicy,
    *,
    sampling: Sampling,
    concurrency: int,
    on_finished: Callable[[Tree], None] | None = None,
    clock: Clock = time.perf_counter,
) -> list[Tree]:
    """Run all jobs and return their trees in the order of the jobs; see `run_episodes`."""
    return await run_pool(
        jobs,
        lambda job: run_message_episode(job, settings, policy, sampling=sampling, clock=clock),
        concurrency=concurrency,
        on_finished=on_finished,
    )


async def run_message_episode(
    job: EpisodeJob,
    settings: AgentSettings,
    policy: MessagePolicy,
    *,
    sampling: Sampling,
    clock: Clock = time.perf_counter,
) -> Tree:
    """Run one episode and return it as a tree without segments.

    Args:
        job: what to run.
        settings: the agent; `native` calls go through the endpoint's own tool calling, others are read from the text.
        policy: who acts.
        sampling: temperature, top-p and top-k; the agent's `max_turn_tokens` replaces `max_new_tokens`.
        clock: times the calls of env and policy.
    """
    env = EpisodeEnv(job)
    episode = _Episode(job, settings, policy, sampling, clock)
    try:
        leaf = await episode.run(env)
    except BaseException:
        env.abandon()
        raise
    await env.close()
    return tree_of((leaf,), id=job.tree_id, env_id=job.env_id, task=job.task, seed=job.seed)


class _Episode:
    """One conversation under way."""

    def __init__(
        self, job: EpisodeJob, settings: AgentSettings, policy: MessagePolicy, sampling: Sampling, clock: Clock
    ) -> None:
        self._settings, self._policy, self._clock = settings, policy, clock
        self._sampling = replace(sampling, max_new_tokens=settings.max_turn_tokens)
        self._seed = job.sampling_seed
        name = text_format_name(settings)
        self._format: TextFormat | None = None if name == NATIVE else text_format(name)
        self._messages: list[Message] = []
        self._tools: tuple[ToolSpec, ...] = ()
        self._num_turns = 0
        self._spent = Cost()
        """On the turn under way."""

    async def run(self, env: EpisodeEnv) -> Link:
        """Play to the end and return the leaf."""
        started = self._clock()
        path: Link | None = None
        try:
            self._open(await env.reset())
            path = Link(None, Edge(segments=(), ends_turn=False, cost=Cost(seconds=self._clock() - started)))
            while path.ending is None:
                started = self._clock()
                path = await self._turn(env, path, started)
        except InfrastructureError as error:
            lost = replace(self._spent, seconds=self._clock() - started)
            return Link(path, Edge(segments=(), ends_turn=False, cost=lost), None, ending_of(error), str(error))
        return path

    def _open(self, record: ResetRecord) -> None:
        instructions = ""
        if self._format is None:
            self._tools = record.tools
        else:
            instructions = self._format.instructions(record.tools)
        standing = (own_system_prompt(self._settings), record.system_prompt, instructions)
        self._messages = list(first_messages(record, *standing))

    async def _turn(self, env: EpisodeEnv, path: Link, started: float) -> Link:
        self._spent = Cost()
        reply = await self._ask()
        cost = self._spent = Cost(
            tokens_generated=reply.completion_tokens, tokens_prefilled=reply.prompt_tokens - reply.cached_tokens
        )
        is_cut = reply.finish_reason is FinishReason.LENGTH and self._settings.on_length is OnLength.TRUNCATE
        if is_cut or reply.context_is_full:
            edge = Edge(segments=(), ends_turn=False, cost=replace(cost, seconds=self._clock() - started))
            return Link(path, edge, None, Ending.TRUNCATED_TOKENS)
        result = await env.step(reply.action if self._format is None else self._format.parse(reply.action))
        record = result.info["envgym"]
        assert isinstance(record, StepRecord), "checked by EpisodeEnv"
        self._num_turns += 1
        self._remember(record)
        ending = turn_ending(result, record)
        if ending is None and self._is_full(reply):
            ending = Ending.TRUNCATED_TOKENS
        cost = replace(cost, tool_calls=record.tool_calls, env_steps=1, seconds=self._clock() - started)
        error = (record.error or ending.value) if ending is not None and ending.is_error else None
        return Link(path, Edge(segments=(), ends_turn=True, cost=cost), turn_outcome(record), ending, error)

    async def _ask(self) -> MessageReply:
        request = MessageRequest(
            messages=tuple(self._messages),
            tools=self._tools,
            sampling=self._sampling,
            seed=derive_seed(self._seed, "turn", self._num_turns),
        )
        try:
            return await self._policy.reply(request)
        except PolicyFailure:
            raise
        except Exception as error:
            raise PolicyFailure(f"the reply failed: {type(error).__name__}: {error}") from error

    def _remember(self, record: StepRecord) -> None:
        """Extend the conversation; where calls are text, they and their results are ordinary messages."""
        if self._format is None:
            self._messages += [record.action.message, *record.observation.messages]
            return
        self._messages.append(Message(role=Role.ASSISTANT, content=str(record.action)))
        self._messages += [
            Message(role=Role.USER, parts=message.parts) if message.role is Role.TOOL else message
            for message in record.observation.messages
        ]

    def _is_full(self, reply: MessageReply) -> bool:
        """Return whether another turn would not fit, as far as the endpoint counted."""
        used = reply.prompt_tokens + reply.completion_tokens
        return used + self._sampling.max_new_tokens > self._settings.max_context_tokens
