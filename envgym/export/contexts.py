"""Episodes as conversations: the messages of every context that the policy was given, and what it wrote after them.

Messages are in the plain form that data sets of conversations hold: content is one text, and an action that could not
be read as tool calls is its whole text, whose replies are messages of the user.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from envgym.core.json_types import JsonValue, well_formed
from envgym.core.messages import Message, Role, ToolCall
from envgym.core.trajectory import Trajectory
from envgym.core.tree import Rewrite, Tree

Redact = Callable[[str], str]
"""Returns the text to export in place of a text."""


_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL  # looked up once: exports read millions of messages
_OTHER_MESSAGES: Final = frozenset({Rewrite.TURNS_DROPPED, Rewrite.SUMMARY, Rewrite.CONVERSATION})
"""Rewrites after which a context is of other messages; with the others a template may render the same ones."""


class ContextTurn(NamedTuple):
    """One turn: what the policy wrote, and the replies of the environment."""

    number: int
    """Number of the turn in the episode, from 0."""
    node: int
    """Tree node at which the turn ends."""
    messages: tuple[Message, ...]
    """The assistant message first."""
    is_sampled: bool
    """Whether the policy wrote it in this episode; False for replayed turns and for those of a demonstrator."""
    is_learned: bool
    """Whether a conversation's reader may train on it: it is sampled, and calls no tool that the episode lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One context of an episode; an episode has one, and another one after each rewrite that changed its messages."""

    number: int
    """From 0."""
    rewrite: Rewrite | None
    """Why the context was rewritten; None for the first."""
    opening: tuple[Message, ...] | None
    """The messages before its first turn; None: they were not recorded."""
    turns: tuple[ContextTurn, ...]
    """At least one."""

    @property
    def messages(self) -> tuple[tuple[Message, bool], ...]:
        """The messages up to the last one of the policy, and whether each may be trained on."""
        assert self.opening is not None, "only recorded contexts have messages"
        pairs = [(message, False) for message in self.opening]
        for turn in self.turns:
            pairs.append((turn.messages[0], turn.is_learned))
            pairs += ((message, False) for message in turn.messages[1:])
        num_replies = len(self.turns[-1].messages) - 1
        return tuple(pairs[: len(pairs) - num_replies])


class TreeConversations:
    """Reads the episodes of one tree as conversations; messages that several of them share are made once."""

    def __init__(self, tree: Tree, redact: Redact | None = None) -> None:
        self.tree = tree
        self._redact = redact
        self._turns: dict[int, tuple[Message, ...]] = {}
        self._tools = {spec.name for spec in tree.tools}

    def contexts(self, episode: Trajectory) -> tuple[Context, ...]:
        """Return the contexts of an episode of the tree in which the policy finished a turn."""
        tree = self.tree
        num_replayed = 0 if tree.prefix is None else tree.prefix.num_turns
        opening = self.plain(tree.messages) if tree.messages else None
        contexts: list[Context] = []
        number, rewrite, turns = 0, None, list[ContextTurn]()
        for index, nodes in enumerate(episode.turn_nodes):
            for node in nodes:
                edge = tree.nodes[node].edge
                if edge.context or (edge.rewrite and edge.rewrite in _OTHER_MESSAGES):
                    contexts += _finished(number, rewrite, opening, turns)
                    opening = self.plain(edge.context) if edge.context else None
                    number, rewrite, turns = number + 1, edge.rewrite, []
            if tree.nodes[nodes[-1]].outcome is not None:
                is_sampled = index >= num_replayed and _is_sampled(tree, nodes)
                messages = self._turn(nodes[-1])
                is_learned = is_sampled and self._calls_known(messages[0])
                turns.append(ContextTurn(index, nodes[-1], messages, is_sampled, is_learned))
        return (*contexts, *_finished(number, rewrite, opening, turns))

    def plain(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """Return messages in the plain form."""
        plain: list[Message] = []
        ids: set[str | None] = set()
        for message in messages:
            is_tool = message.role is _TOOL
            if not is_tool:
                ids = {call.id or None for call in message.tool_calls}
            elif not ids or (message.tool_call_id and None not in ids and message.tool_call_id not in ids):
                message, is_tool = Message(role=Role.USER, content=message.content), False
            plain.append(message if self._redact is None and _is_plain(message, is_tool) else self._plain(message))
        return tuple(plain)

    def _calls_known(self, message: Message) -> bool:
        return not self._tools or self._tools.issuperset({call.name for call in message.tool_calls})

    def _turn(self, node: int) -> tuple[Message, ...]:
        messages = self._turns.get(node)
        if messages is None:
            outcome = self.tree.nodes[node].outcome
            assert outcome is not None, "a turn ends there"
            replies, is_text = outcome.observation.messages, bool(outcome.action.malformed)
            action = Message(role=Role.ASSISTANT, content=str(outcome.action)) if is_text else outcome.action.message
            messages = self._turns[node] = self.plain((action, *replies))
        return messages

    def _plain(self, message: Message) -> Message:
        is_tool = message.role is Role.TOOL
        return Message(
            role=message.role,
            content=self._text(message.content),
            thinking=self._text(message.thinking) if message.thinking else None,
            tool_calls=tuple(map(self._call, message.tool_calls)) if message.role is Role.ASSISTANT else (),
            tool_call_id=message.tool_call_id or None if is_tool else None,
            name=message.name or None if is_tool else None,
        )

    def _call(self, call: ToolCall) -> ToolCall:
        arguments = call.arguments
        if self._redact is not None:
            arguments = {name: self._value(value) for name, value in arguments.items()}
        return ToolCall(name=call.name, arguments=arguments, id=call.id or None)

    def _value(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {name: self._value(part) for name, part in value.items()}
        return [self._value(part) for part in value] if isinstance(value, list | tuple) else value

    def _text(self, text: str) -> str:
        return well_formed(text if self._redact is None else self._redact(text))


def _is_plain(message: Message, is_tool: bool) -> bool:
    """Return whether a message is in the plain form already, as most are; some that are get made again."""
    content, thinking, name, call_id = message.content, message.thinking, message.name, message.tool_call_id
    return (
        content.isascii()
        and len(message.parts) == (content != "")
        and (thinking is None or (thinking != "" and thinking.isascii()))
        and (is_tool or (name is None and call_id is None))
        and name != ""
        and call_id != ""
        and not message.is_error
        and (not message.tool_calls or message.role is _ASSISTANT)
        and "" not in [call.id for call in message.tool_calls]
    )


def _finished(
    number: int, rewrite: Rewrite | None, opening: tuple[Message, ...] | None, turns: list[ContextTurn]
) -> tuple[Context, ...]:
    if not turns:
        return ()
    return (Context(number=number, rewrite=rewrite, opening=opening, turns=tuple(turns)),)


def _is_sampled(tree: Tree, nodes: Iterable[int]) -> bool:
    """Return whether the policy wrote any of a turn; trees of message policies have no tokens that tell."""
    has_segments = False
    for node in nodes:
        for segment in tree.nodes[node].edge.segments:
            if segment.trains:
                return True
            has_segments = True
    return not has_segments
