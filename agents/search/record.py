"""From what a search grew to the tree record: shared turns, forks inside a turn, what was known of each node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from envgym.agents.episode import EpisodeJob
from envgym.agents.path import Link
from envgym.core.builder import TreeBuilder, split_segments
from envgym.core.tree import Edge, SearchStats, Tree
from envgym.core.turns import Cost


@dataclass(frozen=True, slots=True, eq=False)
class MidTurn:
    """Where a link leaves the edge of an elder sibling."""

    elder: Link
    at: int
    """The first so many tokens of both edges are the same ones, sampled once."""


@dataclass(slots=True)
class _Piece:
    """A node that holds part of a link's edge, from token `start` on."""

    start: int
    handle: int


class _Joiner:
    """Puts links into a builder; a link that was put in once is one node, or several where it was cut."""

    def __init__(self, builder: TreeBuilder, root: Link, forks: Mapping[Link, MidTurn]) -> None:
        self._builder, self._forks = builder, forks
        self.handles = {root: builder.root}
        """The node at which each link ends."""
        self._pieces: dict[Link, list[_Piece]] = {}

    def add(self, link: Link) -> None:
        """Put in a link whose parent is in."""
        assert link.parent is not None, "a second root"
        fork = self._forks.get(link)
        parent, edge, start = self.handles[link.parent], link.edge, 0
        if fork is not None:
            parent, start = self._cut(fork), fork.at
            edge = _without(edge, fork.at)
        handle = self._builder.add(parent, edge, outcome=link.outcome, ending=link.ending, error=link.error)
        self.handles[link] = handle
        self._pieces[link] = [_Piece(start, handle)]

    def _cut(self, fork: MidTurn) -> int:
        """Return the node behind the first tokens of an elder's edge, made where there is none yet."""
        pieces = self._pieces[fork.elder]
        place = max(place for place, piece in enumerate(pieces) if piece.start <= fork.at)
        piece = pieces[place]
        if piece.start == fork.at:
            parent = self._builder[piece.handle].parent
            assert parent is not None, "no fork lies above the root"
            return parent
        middle = self._builder.split(piece.handle, fork.at - piece.start)
        pieces[place : place + 1] = [_Piece(piece.start, middle), _Piece(fork.at, piece.handle)]
        return middle


def _without(edge: Edge, at: int) -> Edge:
    """Return `edge` without its first tokens, which belong to the elder; the rewrite is the elder's, too."""
    segments = split_segments(edge.segments, at)[1] if edge.num_tokens > at else ()
    return replace(edge, segments=segments, rewrite=None)


def join(
    lines: Sequence[Link], job: EpisodeJob, *, forks: Mapping[Link, MidTurn], stats: Mapping[Link, SearchStats]
) -> Tree:
    """Join the lines that end at `lines` into one tree; elder branches come first.

    Args:
        lines: last link of every branch, ended or not; all below one root.
        job: what the tree is of.
        forks: the links that leave an elder sibling inside its turn.
        stats: what the search knew; `spent` is completed by what the edges below cost.
    """
    root = lines[0].line()[0]
    builder = TreeBuilder(id=job.tree_id, env_id=job.env_id, task=job.task, seed=job.seed, prompt=root.edge.segments)
    builder.charge(builder.root, root.edge.cost)
    if root.ending is not None:
        builder.end(builder.root, root.ending, error=root.error)
    joiner = _Joiner(builder, root, forks)
    for line in lines:
        for link in line.line():
            if link not in joiner.handles:
                joiner.add(link)
    spent = _spent_below(builder)
    for link, known in stats.items():
        if link in joiner.handles:
            handle = joiner.handles[link]
            builder.annotate(handle, replace(known, spent=known.spent + spent[handle]))
    return builder.freeze()


def _spent_below(builder: TreeBuilder) -> list[Cost]:
    """Return for every node what the edges below it cost."""
    spent = [Cost()] * len(builder)
    above = {handle: builder[handle].parent for handle in range(len(builder))}
    for handle in range(len(builder)):
        cost, parent = builder[handle].edge.cost, above[handle]
        while parent is not None:
            spent[parent] += cost
            parent = above[parent]
    return spent
