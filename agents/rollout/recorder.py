"""From the paths of an episode's branches to its tree record; a chain is the case of one branch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from envgym.agents.loop.path import PathNode
from envgym.agents.loop.state import EpisodeSetup
from envgym.agents.rollout.episode import EpisodeJob
from envgym.core.builder import TreeBuilder, split_segments
from envgym.core.tree import Edge, RecordedPrefix, SearchStats, Tree
from envgym.core.turns import Cost


@dataclass(frozen=True, slots=True, eq=False)
class MidTurnFork:
    """Where a node's edge leaves the edge of an earlier sibling."""

    sibling: PathNode
    num_tokens: int
    """The first so many tokens of both edges are the same ones, sampled once."""


def record_tree(
    leaves: Sequence[PathNode],
    job: EpisodeJob,
    *,
    forks: Mapping[PathNode, MidTurnFork] = MappingProxyType({}),
    stats: Mapping[PathNode, SearchStats] = MappingProxyType({}),
    setup: EpisodeSetup | None = None,
) -> Tree:
    """Join the paths to `leaves` into one tree; a node that several paths share is recorded once.

    Args:
        leaves: last node of every branch, at least one, all below one root; earlier branches come first.
        job: the episode that the tree records.
        forks: the nodes whose edge leaves that of an earlier sibling inside a turn.
        stats: search statistics of nodes; their `spent` is completed by the cost of the edges below.
        setup: of the episode, whose prompt the tree keeps as messages too; None: the tree has no messages.
    """
    recorder = _TreeRecorder(leaves[0].path()[0], job, forks)
    for leaf in leaves:
        for node in leaf.path():
            if node not in recorder.handles:
                recorder.add(node)
    recorder.annotate(stats)
    start = job.start
    prefix = None if start is None else RecordedPrefix(start.tree.id, start.node, len(start.turns))
    if setup is None:
        return recorder.builder.freeze(prefix=prefix)
    prompts, messages, tools = setup.prompts, setup.messages, setup.tools
    return recorder.builder.freeze(prompts=prompts, messages=messages, tools=tools, prefix=prefix)


@dataclass(slots=True)
class _EdgePiece:
    """The part of an edge from token `start` on, with the handle of the node at its end."""

    start: int
    handle: int


class _TreeRecorder:
    """Puts path nodes into a builder; each becomes one node, or several where its edge is cut by forks."""

    def __init__(self, root: PathNode, job: EpisodeJob, forks: Mapping[PathNode, MidTurnFork]) -> None:
        self.builder = TreeBuilder(
            id=job.tree_id,
            env_id=job.env_id,
            task=job.task,
            seed=job.seed,
            prompt=root.edge.segments,
            cost=root.edge.cost,
        )
        if root.ending is not None:
            self.builder.end(self.builder.root, root.ending, error=root.error)
        self._forks = forks
        self.handles = {root: self.builder.root}
        """The builder's handle of every recorded node."""
        self._pieces: dict[PathNode, list[_EdgePiece]] = {}
        """Nodes whose edges were cut."""

    def add(self, node: PathNode) -> None:
        assert node.parent is not None, "a second root"
        parent, edge, fork = self.handles[node.parent], node.edge, self._forks.get(node)
        if fork is not None:
            parent, edge = self._cut(fork), _without_first_tokens(edge, fork.num_tokens)
        self.handles[node] = handle = self.builder.add(
            parent, edge, outcome=node.outcome, ending=node.ending, error=node.error
        )
        if fork is not None:
            self._pieces[node] = [_EdgePiece(fork.num_tokens, handle)]

    def annotate(self, stats: Mapping[PathNode, SearchStats]) -> None:
        spent = _spent_below(self.builder) if stats else []
        for node, node_stats in stats.items():
            handle = self.handles.get(node)
            if handle is not None:
                self.builder.annotate(handle, replace(node_stats, spent=node_stats.spent + spent[handle]))

    def _cut(self, fork: MidTurnFork) -> int:
        """Return the handle of the node after the first tokens of a sibling's edge, made where there is none yet."""
        pieces = self._pieces.setdefault(fork.sibling, [_EdgePiece(0, self.handles[fork.sibling])])
        index = max(index for index, piece in enumerate(pieces) if piece.start <= fork.num_tokens)
        piece = pieces[index]
        if piece.start == fork.num_tokens:
            parent = self.builder[piece.handle].parent
            assert parent is not None, "no fork lies above the root"
            return parent
        middle = self.builder.split(piece.handle, fork.num_tokens - piece.start)
        pieces[index : index + 1] = [_EdgePiece(piece.start, middle), _EdgePiece(fork.num_tokens, piece.handle)]
        return middle


def _without_first_tokens(edge: Edge, num_tokens: int) -> Edge:
    """Return `edge` without the tokens of an earlier sibling; a rewrite is recorded on the sibling's edge, too."""
    segments = split_segments(edge.segments, num_tokens)[1] if edge.num_tokens > num_tokens else ()
    return replace(edge, segments=segments, rewrite=None, context=())


def _spent_below(builder: TreeBuilder) -> list[Cost]:
    """Return for every node the cost of the edges below it."""
    spent = [Cost()] * len(builder)
    parents = [builder[handle].parent for handle in range(len(builder))]
    for handle in range(len(builder)):
        cost, parent = builder[handle].edge.cost, parents[handle]
        while parent is not None:
            spent[parent] += cost
            parent = parents[parent]
    return spent
