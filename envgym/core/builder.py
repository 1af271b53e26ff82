"""Grow a tree while sampling, then freeze it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from envgym.core.messages import Message, ToolSpec
from envgym.core.segments import Segment
from envgym.core.tasks import Split, Task
from envgym.core.tree import Edge, Node, RecordedPrefix, SearchStats, Tree
from envgym.core.turns import Cost, Ending, TurnOutcome
from envgym.errors import InvalidInput

_NO_COST = Cost()
_NO_PROMPTS: Mapping[str, tuple[int, ...]] = MappingProxyType({})


class TreeBuilder:
    """A tree under construction; node handles are stable ints, also across `split`."""

    def __init__(
        self, *, id: str, env_id: str, task: Task, seed: int, prompt: Sequence[Segment], cost: Cost = _NO_COST
    ) -> None:
        """Start with the root, whose edge holds the prompt and what it cost."""
        self._id, self._env_id, self._task, self._seed = id, env_id, task, seed
        self._nodes: list[Node] = [Node(parent=None, edge=Edge(segments=tuple(prompt), ends_turn=False, cost=cost))]

    root = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, handle: int) -> Node:
        """Return the node as it now is; its `parent` is a handle."""
        return self._nodes[handle]

    def add(
        self,
        parent: int,
        edge: Edge,
        *,
        outcome: TurnOutcome | None = None,
        ending: Ending | None = None,
        error: str | None = None,
    ) -> int:
        """Append a node below `parent` and return its handle."""
        if self._nodes[parent].ending is not None:
            raise InvalidInput.of(
                "parent", "not have ended its episode", parent, where=self._id, do="branch above the leaf"
            )
        self._nodes.append(Node(parent=parent, edge=edge, outcome=outcome, ending=ending, error=error))
        return len(self._nodes) - 1

    def split(self, handle: int, at: int) -> int:
        """Cut the edge of `handle` before its token `at` (0 < at < T); return the new node in the middle.

        The new node holds the first `at` tokens and ends no turn; `handle` keeps the rest, its outcome, its
        ending and its children. The cost stays with `handle`, so that the tree's total does not change.
        """
        node = self._nodes[handle]
        head, tail = split_segments(node.edge.segments, at)
        if node.parent is None:
            raise InvalidInput.of("split", "name a node below the root", handle, where=self._id, do="add a child")
        middle = Edge(segments=head, ends_turn=False, rewrite=node.edge.rewrite, context=node.edge.context)
        self._nodes.append(Node(parent=node.parent, edge=middle))
        new = len(self._nodes) - 1
        self._nodes[handle] = replace(
            node, parent=new, edge=replace(node.edge, segments=tail, rewrite=None, context=())
        )
        return new

    def annotate(self, handle: int, stats: SearchStats) -> None:
        self._nodes[handle] = replace(self._nodes[handle], stats=stats)

    def end(self, handle: int, ending: Ending, *, error: str | None = None) -> None:
        """Record that the episode ended at an existing node."""
        self._nodes[handle] = replace(self._nodes[handle], ending=ending, error=error)

    def freeze(
        self,
        *,
        prompts: Mapping[str, tuple[int, ...]] = _NO_PROMPTS,
        messages: tuple[Message, ...] = (),
        tools: tuple[ToolSpec, ...] = (),
        prefix: RecordedPrefix | None = None,
    ) -> Tree:
        """Return the tree with nodes in depth-first order (parents first, siblings in order of their handles).

        The arguments are fields of `Tree`.
        """
        return Tree(
            id=self._id,
            env_id=self._env_id,
            task_id=self._task.id,
            task_key=self._task.key,
            split=Split(self._task.split),
            seed=self._seed,
            nodes=tuple(self._depth_first()),
            prompts=dict(prompts),
            messages=messages,
            tools=tools,
            prefix=prefix,
        )

    def _depth_first(self) -> list[Node]:
        if all(node.parent == handle - 1 for handle, node in enumerate(self._nodes) if handle):
            return self._nodes  # a chain
        children: list[list[int]] = [[] for _ in self._nodes]
        for handle, node in enumerate(self._nodes):
            if node.parent is not None:
                children[node.parent].append(handle)
        index_of: dict[int, int] = {}
        nodes: list[Node] = []
        stack = [self.root]
        while stack:
            handle = stack.pop()
            node = self._nodes[handle]
            index_of[handle] = len(nodes)
            parent = None if node.parent is None else index_of[node.parent]
            nodes.append(node if parent == node.parent else replace(node, parent=parent))
            stack.extend(reversed(children[handle]))
        return nodes


def split_segments(segments: Sequence[Segment], at: int) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Cut a run of segments before token `at`, 0 < at < T. Raises: InvalidInput: outside that range."""
    total = sum(len(segment) for segment in segments)
    if not 0 < at < total:
        raise InvalidInput.of(
            "split position", f"lie inside 1..{total - 1}", at, where="edge", do="fork at a node instead"
        )
    head: list[Segment] = []
    tail: list[Segment] = []
    for segment in segments:
        if at >= len(segment):
            head.append(segment)
            at -= len(segment)
        elif at > 0:
            first, second = segment.split(at)
            head.append(first)
            tail.append(second)
            at = 0
        else:
            tail.append(segment)
    return tuple(head), tuple(tail)
