"""Which recorded turn a call goes on from: transcripts as the nodes of a trie, one step for every message. Pure.

Clients send the whole conversation with every call, and change what does not matter to them: ids of calls, the order of
keys, null for an empty text or a missing argument, `1.0` for `1`, white space around a text, thinking. None of that is
part of a message's identity.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from envgym.core.json_types import JsonValue
from envgym.core.messages import Message, Role, ToolCall
from envgym.tools import ToolSpec

Identity = tuple[str, ...]
"""Role and text of a message; of an assistant's also its calls and, where it counts, its thinking."""
TurnT = TypeVar("TurnT")


@dataclass(slots=True, eq=False)
class Transcript(Generic[TurnT]):
    """A conversation up to some message."""

    digest: bytes
    """Of the tools and of all messages so far; the same in every process."""
    num_asked: int = 0
    """Calls whose whole conversation this is."""
    turns: list[TurnT] = field(default_factory=list)
    """Those whose reply is the last message, the newest last."""
    children: "dict[Identity, Transcript[TurnT]]" = field(default_factory=dict)

    def followed_by(self, identity: Identity) -> "Transcript[TurnT]":
        """Return the transcript with one more message."""
        child = self.children.get(identity)
        if child is None:
            child = self.children[identity] = Transcript(_digest(self.digest, identity))
        return child


class Transcripts(Generic[TurnT]):
    """All conversations of an episode, by what was sent; other tools make another conversation."""

    def __init__(self, *, compares_thinking: bool = False) -> None:
        self._compares_thinking = compares_thinking
        self._roots: list[tuple[tuple[ToolSpec, ...], Transcript[TurnT]]] = []

    def path(self, tools: tuple[ToolSpec, ...], messages: Sequence[Message]) -> list[Transcript[TurnT]]:
        """Return the transcripts after each message, oldest first."""
        transcript = self._root(tools)
        path: list[Transcript[TurnT]] = []
        for message in messages:
            identity = self.identity(message)
            transcript = transcript.children.get(identity) or transcript.followed_by(identity)
            path.append(transcript)
        return path

    def identity(self, message: Message) -> Identity:
        """Return the identity of a message; equal ones are the same message."""
        if message.role is not Role.ASSISTANT:
            return message.role, message.content
        calls = _canonical(message.tool_calls) if message.tool_calls else ""
        thinking = (message.thinking or "").strip() if self._compares_thinking else ""
        return message.role, message.content.strip(), calls, thinking

    def _root(self, tools: tuple[ToolSpec, ...]) -> Transcript[TurnT]:
        for root_tools, root in self._roots:
            if root_tools == tools:
                return root
        listed = [(tool.name, tool.description, tool.parameters) for tool in tools]
        root = Transcript[TurnT](_digest(b"", (json.dumps(listed, sort_keys=True),)))
        self._roots.append((tools, root))
        return root


def _canonical(calls: Sequence[ToolCall]) -> str:
    return json.dumps([(call.name, _plain(call.arguments)) for call in calls], sort_keys=True)


def _plain(value: JsonValue) -> JsonValue:
    """Leave out keys whose value is null, and write a whole float as an integer: clients do either or neither."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _digest(before: bytes, identity: Identity) -> bytes:
    text = json.dumps(identity).encode()
    return hashlib.blake2b(before + text, digest_size=16).digest()
