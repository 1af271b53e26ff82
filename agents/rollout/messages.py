"""Drive episodes at the level of messages, for models that are reached without tokens (hosted, or served elsewhere).

Their trees hold the first messages, actions, observations, rewards and costs, and no segments: they can be evaluated,
not trained on. When the context is full the episode ends as TRUNCATED_TOKENS; what to leave out cannot be decided
without counting tokens.
The loop, its handling of failures and the recorder are those of `driver`; here is only what messages do differently.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from envgym.agents.loop.agent import Agent, AgentSettings, own_system_prompt, resolve_text_format
from envgym.agents.loop.path import History
from envgym.agents.protocols import (
    GenerateRequest,
    Generation,
    PolicyLifecycle,
    Renderer,
    Rendering,
    Sampling,
)
from envgym.agents.rollout.driver import GenerateFn, drive_episode
from envgym.agents.rollout.episode import Clock, EpisodeEnv, EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.tree import Tree
from envgym.parsing.formats import TextFormat
from envgym.records import ResetRecord, StepRecord, first_messages
from envgym.tools import ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequest(GenerateRequest):
    """A request for one reply."""

    token_ids: tuple[int, ...] = ()
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    """Those that the endpoint is to offer the model; none where the messages describe them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReply(Generation):
    """A model's reply, of which the tokens are not known, and its cost."""

    has_tokens: ClassVar[bool] = False
    token_ids: tuple[int, ...] = ()
    behavior_logprobs: tuple[float, ...] = ()
    raw_logprobs: tuple[float, ...] | None = None
    policy_version: int = 0
    action: Action
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's tokens, those that the endpoint did not compute again."""
    completion_tokens: int = 0

    @property
    def num_spent(self) -> tuple[int, int]:
        return self.completion_tokens, self.prompt_tokens - self.cached_tokens


class MessagePolicy(PolicyLifecycle, Protocol):
    """Answers conversations."""

    unit: Literal["messages"] = "messages"
    """What it takes and returns; a `Policy` takes tokens."""

    async def reply(self, request: MessageRequest) -> MessageReply:
        """Answer one conversation. Raises: PolicyFailure: the endpoint broke."""
        ...


async def run_message_episode(
    job: EpisodeJob,
    settings: AgentSettings,
    policy: MessagePolicy,
    *,
    sampling: Sampling,
    clock: Clock = time.perf_counter,
    abort: AbortHandle | None = None,
) -> Tree:
    """Run one episode and return it as a tree without segments; the arguments are those of `run_episode`.

    With `native` calls go through the endpoint's own tool calling, with other text formats they are read from the text.
    """
    agent, generate = message_agent(settings), reply_fn(policy)
    env = EpisodeEnv(job)
    return await drive_episode(env, agent, sampling=sampling, generate=generate, clock=clock, abort=abort)


def message_agent(settings: AgentSettings) -> "MessageAgent":
    """Make the agent of a policy of messages. Raises: UnknownName: no such agent or text format."""
    return MessageAgent(
        settings=settings,
        system_prompt=own_system_prompt(settings),
        text_format=resolve_text_format(settings),
    )


def reply_fn(policy: MessagePolicy) -> GenerateFn:
    """Return the function that sends the requests of a `MessageAgent` to a policy."""

    async def generate(request: GenerateRequest) -> Generation:
        assert isinstance(request, MessageRequest), "made by the agent"
        return await policy.reply(request)

    return generate


class _NoTokens:
    """Renders nothing: the policy is given the messages themselves."""

    stop_token_ids: tuple[int, ...] = ()

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendering:
        return Rendering(segments=())

    def extend(
        self, history: Sequence[Message], generation: Generation, observation: Observation, tools: Sequence[ToolSpec]
    ) -> Rendering:
        return Rendering(segments=())

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Action:
        return Action()

    def encode_action(self, action: Action) -> tuple[int, ...]:
        return ()

    def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAgent(Agent):
    """An agent whose policy is given the messages themselves."""

    renderer: Renderer = field(default_factory=_NoTokens)
    text_format: TextFormat | None
    """How calls are written into the text; None: the endpoint has calls of its own."""

    def opening(self, record: ResetRecord) -> tuple[Message, ...]:
        """Return the first messages of an episode, which say how calls are written."""
        instructions = "" if self.text_format is None else self.text_format.instructions(record.tools)
        return first_messages(record, self.system_prompt, record.system_prompt, instructions)

    def request(self, request: GenerateRequest, history: History, tools: tuple[ToolSpec, ...]) -> MessageRequest:
        offered = tools if self.text_format is None else ()
        messages = tuple(history)
        return MessageRequest(messages=messages, tools=offered, sampling=request.sampling, seed=request.seed)

    def parse(self, generation: Generation, tools: Sequence[ToolSpec] = ()) -> Action:
        action = _reply(generation).action
        return action if self.text_format is None else self.text_format.parse(action)

    def turn_messages(self, record: StepRecord) -> tuple[Message, ...]:
        """Return the messages that a turn adds; where calls are text, they and their results are ordinary messages."""
        replies = record.observation.messages
        if self.text_format is None:
            return (record.action.message, *replies)
        action = Message(role=Role.ASSISTANT, content=str(record.action))
        results = (Message(role=Role.USER, parts=item.parts) if item.role is Role.TOOL else item for item in replies)
        return (action, *results)

    def context_length(self, context: tuple[int, ...], generation: Generation) -> int:
        """Return the tokens of conversation and reply, as far as the endpoint counts them."""
        return _reply(generation).prompt_tokens + _reply(generation).completion_tokens


def _reply(generation: Generation) -> MessageReply:
    assert isinstance(generation, MessageReply), "a policy of messages replied"
    return generation
