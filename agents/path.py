"""What an agent has lived through, as linked records that only grow: forks share them instead of copying.

`History` is the conversation, `Link` a finished edge of the tree. Appending to either costs the same however long
it is, and two agents that were one share everything up to where they parted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional, overload

from envgym.core.endings import Ending
from envgym.core.messages import Message
from envgym.core.tasks import Split, Task
from envgym.core.tree import Edge, Node, Tree
from envgym.core.turns import TurnOutcome


class History(Sequence[Message]):
    """An immutable conversation; `extended` shares it, and only reading writes it out flat (once)."""

    __slots__ = ("_flat", "_length", "_parent", "_tail")

    def __init__(self, messages: Sequence[Message] = (), parent: Optional["History"] = None) -> None:
        """Hold `messages` behind those of `parent`."""
        self._parent, self._tail = parent, tuple(messages)
        self._length = len(self._tail) + (len(parent) if parent is not None else 0)
        self._flat: tuple[Message, ...] | None = None

    def extended(self, *messages: Message) -> "History":
        """Return this conversation with `messages` behind it."""
        return History(messages, self)

    @property
    def flat(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        if self._flat is None:
            parts: list[tuple[Message, ...]] = []
            link: History | None = self
            while link is not None and link._flat is None:
                parts.append(link._tail)
                link = link._parent
            known = link._flat if link is not None and link._flat is not None else ()
            self._flat = (*known, *(message for part in reversed(parts) for message in part))
        return self._flat

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        """Return a message or a run of messages."""
        return self.flat[index]

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages, oldest first."""
        return iter(self.flat)


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A finished edge and, through `parent`, all above it; equal only to itself."""

    parent: Optional["Link"]
    """None for the root, whose edge holds the prompt."""
    edge: Edge
    outcome: TurnOutcome | None = None
    ending: Ending | None = None
    error: str | None = None

    def line(self) -> tuple["Link", ...]:
        """Return the links from the root to this one."""
        found: list[Link] = []
        link: Link | None = self
        while link is not None:
            found.append(link)
            link = link.parent
        return tuple(reversed(found))


def tree_of(leaves: Sequence[Link], *, id: str, env_id: str, task: Task, seed: int) -> Tree:
    """Join the lines of `leaves` into a tree; a link that several lines share is one node.

    All leaves hang below one root; at least one is given. Nodes come depth first, siblings in the order of `leaves`.
    """
    children: dict[Link | None, list[Link]] = {None: []}
    for leaf in leaves:
        for link in leaf.line():
            if link not in children:
                children[link] = []
                children[link.parent].append(link)
    (root,) = children[None]
    nodes: list[Node] = []
    waiting: list[tuple[int | None, Link]] = [(None, root)]
    while waiting:
        parent, link = waiting.pop()
        waiting.extend([(len(nodes), child) for child in reversed(children[link])])
        nodes.append(Node(parent=parent, edge=link.edge, outcome=link.outcome, ending=link.ending, error=link.error))
    return Tree(
        id=id,
        env_id=env_id,
        task_id=task.id,
        task_key=task.key,
        split=Split(task.split),
        seed=seed,
        nodes=tuple(nodes),
    )
