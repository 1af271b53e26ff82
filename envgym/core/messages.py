"""Messages with roles, and the two typed texts that cross an env's border: `Observation` and `Action`.

Both are `str` (what a person reads, what Gymnasium's spaces hold) and carry their structure beside the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import ClassVar

from envgym.core.frozen import quick_init
from envgym.core.json_types import JsonObject
from envgym.errors import InvalidInput

GUIDE = "guide"
"""Name of a `USER` message that a guide wrote: a hint, whose tokens are of origin `INJECTED`."""


class Role(StrEnum):
    """Author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a message's content; its subclass is its type (text now; images and sounds would be further ones)."""

    type: ClassVar[str]
    """Name of the type in JSON."""


@quick_init
@dataclass(frozen=True, slots=True)
class TextPart(Part):
    """A part that is text."""

    type = "text"
    text: str


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool by the policy."""

    name: str
    arguments: JsonObject = field(default_factory=dict)
    id: str | None = None
    """The call's id where the model's format has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """Description of a tool, for the policy."""

    name: str
    description: str
    parameters: JsonObject
    """JSON schema of the arguments, an object."""


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Message:
    """One message of a conversation."""

    role: Role
    parts: tuple[Part, ...]
    """The content, in order."""
    content: str = field(init=False, repr=False, compare=False)
    """The text of the content: its text parts, concatenated."""
    thinking: str | None = None
    """Reasoning that the model's format keeps apart from the content."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """For `TOOL`: the id of the call that this message answers."""
    name: str | None = None
    """For `TOOL`: the name of the tool that answers. For `USER`: `GUIDE`, where a guide wrote the message."""
    is_error: bool = False
    """For `TOOL`: whether the call was refused, raised, or could not be read."""

    def __init__(
        self,
        *,
        role: Role,
        content: str = "",
        parts: Sequence[Part] | None = None,
        thinking: str | None = None,
        tool_calls: tuple[ToolCall, ...] = (),
        tool_call_id: str | None = None,
        name: str | None = None,
        is_error: bool = False,
    ) -> None:
        """Take the content as plain text or as parts. Raises: InvalidInput: both are given."""
        if parts is None:
            parts = (TextPart(content),) if content else ()
        elif content:
            where, do = "Message", "pass one of the two"
            raise InvalidInput.of("content", "be empty where parts are given", content, where=where, do=do)
        else:
            parts = tuple(parts)
            content = "".join(part.text for part in parts if isinstance(part, TextPart))
        _set_role(self, role)
        _set_parts(self, parts)
        _set_content(self, content)
        _set_thinking(self, thinking)
        _set_tool_calls(self, tool_calls)
        _set_tool_call_id(self, tool_call_id)
        _set_name(self, name)
        _set_is_error(self, is_error)


(_set_role, _set_parts, _set_content, _set_thinking, _set_tool_calls, _set_tool_call_id, _set_name, _set_is_error) = (
    getattr(Message, entry.name).__set__ for entry in fields(Message)
)  # how its slots are filled, as in `quick_init`


def text_of(message: Message) -> str:
    """Return the content of a message that holds text alone. Raises: InvalidInput: it has a part of another type."""
    for part in message.parts:
        if not isinstance(part, TextPart):
            must, do = "be text for this model", "choose a renderer or an endpoint that takes it"
            raise InvalidInput.of("message part", must, part.type, where=f"{message.role} message", do=do)
    return message.content


class Observation(str):
    """Text that the env shows a person, with the messages it is made of."""

    __slots__ = ("messages",)
    messages: tuple[Message, ...]

    def __new__(cls, text: str = "", messages: Sequence[Message] | None = None) -> "Observation":
        """Wrap `text`; without messages it is one `USER` message (none if the text is empty)."""
        self = super().__new__(cls, text)
        if messages is None:
            messages = (Message(role=Role.USER, content=text),) if text else ()
        self.messages = tuple(messages)
        return self

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Observation":
        """Build the observation whose text is the contents of `messages`, joined by newlines."""
        return cls("\n".join(message.content for message in messages), messages)


class Action(str):
    """Whole text of one turn of the policy, with content, thinking and tool calls as parsed."""

    __slots__ = ("content", "malformed", "thinking", "tool_calls")
    content: str
    """The text without thinking and without tool-call markup."""
    thinking: str | None
    tool_calls: tuple[ToolCall, ...]
    malformed: tuple[str, ...]
    """One sentence per tool call that could not be read; shown to the policy, never raised."""

    def __new__(
        cls,
        text: str = "",
        *,
        content: str | None = None,
        thinking: str | None = None,
        tool_calls: Sequence[ToolCall] = (),
        malformed: Sequence[str] = (),
    ) -> "Action":
        """Wrap `text`; `content` defaults to the text itself."""
        self = super().__new__(cls, text)
        self.content = text if content is None else content
        self.thinking = thinking
        self.tool_calls = tuple(tool_calls)
        self.malformed = tuple(malformed)
        return self

    @property
    def message(self) -> Message:
        return Message(role=Role.ASSISTANT, content=self.content, thinking=self.thinking, tool_calls=self.tool_calls)


# ---- messages in other words: a hint after the task, or words around it ----------------------------------------------

TASK = "{task}"
"""Stands for the task's own words in a text that takes their place."""


def with_hint(messages: Sequence[Message], hint: str) -> tuple[Message, ...]:
    """Return the messages with a hint at the end of the last one, where that is the user's; else as one of its own.

    Many chat templates refuse two messages of the user in a row.
    """
    if not messages or messages[-1].role is not Role.USER:
        return (*messages, Message(role=Role.USER, content=hint, name=GUIDE))
    *before, last = messages
    return (*before, Message(role=last.role, parts=(*last.parts, TextPart(f"\n\n{hint}")), name=last.name))


def reworded(messages: Sequence[Message], words: str) -> tuple[Message, ...]:
    """Return the messages with the user's last one in other words: `words`, with its content in place of `{task}`.

    Words without `{task}` are a hint.

    Raises: InvalidInput: no message is the user's, or it does not hold text alone.
    """
    if TASK not in words:
        return with_hint(messages, words)
    at = max((place for place, message in enumerate(messages) if message.role is Role.USER), default=None)
    if at is None:
        do = "choose an agent that shows the task as a message of the user"
        raise InvalidInput.of("context", "hold a message of the user", "none", where="other words of a task", do=do)
    message = Message(role=Role.USER, content=words.replace(TASK, text_of(messages[at])), name=messages[at].name)
    return (*messages[:at], message, *messages[at + 1 :])
