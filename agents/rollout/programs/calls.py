"""A call of the model by an agent program, its reply, and its refusal: the same records for every wire format. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from envgym.core.messages import Message
from envgym.tools import ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the model by a program."""

    messages: tuple[Message, ...]
    """The whole conversation, oldest message first; at least one."""
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    """Most tokens to sample; the run's limit holds too. None: the run's limit."""
    stop: tuple[str, ...] = ()
    """The reply ends before the first of these texts that is sampled."""


class ReplyFinish(StrEnum):
    """Why a reply ended."""

    STOP = "STOP"
    """A stop token or a stop text was sampled."""
    LENGTH = "LENGTH"
    """The limit of new tokens was reached."""
    TOOL_CALLS = "TOOL_CALLS"
    """The message calls tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReply:
    """The model's answer to a call."""

    message: Message
    """Of the assistant; every call of a tool has an id."""
    finish: ReplyFinish
    prompt_tokens: int
    """Tokens of the context."""
    completion_tokens: int
    """Sampled tokens, the stop token included."""
    cached_tokens: int = 0
    """Tokens of the context that the engine did not compute again."""
    token_strings: tuple[str, ...] = ()
    """[T] the sampled tokens as a person reads them; empty where they are not known."""
    logprobs: tuple[float, ...] = ()
    """[T] nats, under the distribution sampled from; empty where they are not known."""
    malformed: tuple[str, ...] = ()
    """One sentence per tool call that could not be read; its text is in the content of the message."""


class RefusalKind(StrEnum):
    """Kind of a call that is refused."""

    CONTEXT_FULL = "CONTEXT_FULL"
    """The conversation leaves no room for a reply; a program may shorten it and call again."""
    TURN_LIMIT = "TURN_LIMIT"
    """The episode has all the turns that it may have."""
    UNSUPPORTED = "UNSUPPORTED"
    """The call asks for what the endpoint cannot do."""
    POLICY_FAILED = "POLICY_FAILED"
    """The model, or what renders its tokens, failed; the episode is over."""
    CLOSED = "CLOSED"
    """The episode is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefused:
    """A call that is not answered by the model."""

    kind: RefusalKind
    reason: str
    """One sentence for the program."""
