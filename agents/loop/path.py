"""The conversation and the path of an episode, as linked records that only grow: forks share them instead of copying.

`History` is the conversation, `PathNode` a node of the tree with the edge that leads to it. Appending to either costs
the same however long it is, and two branches share everything above the node at which they part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional, overload

from envgym.core.frozen import quick_init
from envgym.core.messages import Message
from envgym.core.tree import Edge
from envgym.core.turns import Ending, TurnOutcome


class History(Sequence[Message]):
    """An immutable conversation; `extended` shares it, and only reading writes it out flat (once)."""

    __slots__ = ("_flat", "_length", "_parent", "_tail")

    def __init__(self, messages: Sequence[Message] = (), parent: Optional["History"] = None) -> None:
        self._parent, self._tail = parent, tuple(messages)
        self._length = len(self._tail) + (len(parent) if parent is not None else 0)
        self._flat: tuple[Message, ...] | None = None

    def extended(self, *messages: Message) -> "History":
        return History(messages, self)

    @property
    def is_first(self) -> bool:
        """Whether it extends no other conversation."""
        return self._parent is None

    @property
    def flat(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        if self._flat is None:
            parts: list[tuple[Message, ...]] = []
            part: History | None = self
            while part is not None and part._flat is None:
                parts.append(part._tail)
                part = part._parent
            head = part._flat if part is not None and part._flat is not None else ()
            self._flat = (*head, *(message for tail in reversed(parts) for message in tail))
        return self._flat

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return self.flat[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.flat)


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class PathNode:
    """A node with the edge that leads to it and, through `parent`, all above it; equal only to itself."""

    parent: Optional["PathNode"]
    """None for the root, whose edge holds the prompt."""
    edge: Edge
    outcome: TurnOutcome | None = None
    ending: Ending | None = None
    error: str | None = None

    def path(self) -> tuple["PathNode", ...]:
        nodes: list[PathNode] = []
        node: PathNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return tuple(reversed(nodes))
