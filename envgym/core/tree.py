"""The tree of turns: the one record between sampling and learning.

A chain is a tree with one leaf. An edge is the run of segments below its parent; a node is the prefix after it.
A node need not end a turn (search may fork at a token); only a node whose edge ends a turn has an outcome, and
only there can an environment have been forked. An edge with a `rewrite` starts a new token sequence: its first
segments are the whole context as rendered anew, and nothing above it belongs to the sequence that follows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, Literal, NamedTuple, get_args

from envgym.core.frozen import quick_init
from envgym.core.messages import Message, ToolSpec
from envgym.core.segments import Origin, Segment
from envgym.core.tasks import Split
from envgym.core.turns import Cost, Ending, TurnOutcome
from envgym.errors import InvalidInput


class Source(StrEnum):
    """Who produced the episodes of a tree."""

    POLICY = "POLICY"
    """The policy that trains, for the step that they belong to."""
    DEMONSTRATION = "DEMONSTRATION"
    """An oracle, a data set, a person."""
    REPLAY = "REPLAY"
    """The policy in an earlier step, or in another run."""
    TEACHER = "TEACHER"
    """Another model."""


class Rewrite(StrEnum):
    """Why a context was rendered anew instead of appended to."""

    TEMPLATE = "TEMPLATE"
    """The chat template renders earlier turns differently now."""
    THINKING_DROPPED = "THINKING_DROPPED"
    TURNS_DROPPED = "TURNS_DROPPED"
    """The oldest turns were cut to fit the context budget."""
    SUMMARY = "SUMMARY"
    CONVERSATION = "CONVERSATION"
    """Another conversation of the same episode, such as that of a sub-agent: nothing above was rendered again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStats:
    """What a search knew of a node."""

    visits: int = 0
    value: float = 0.0
    prior: float | None = None
    pruned: str | None = None
    """Why the node was cut, None where it was kept. A leaf that was cut is no episode of the tree."""
    repeats: str | None = None
    """What of an earlier sibling this node repeats: `tokens` (all that was sampled), or `observation` (what the env
    answered); None: neither."""
    spent: Cost = field(default_factory=Cost)
    """Budget spent below this node."""
    shortfall: str | None = None
    """Of the root: why the tree has fewer leaves than its group asked for; None where it has them."""


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A run of segments below a node."""

    segments: tuple[Segment, ...]
    ends_turn: bool
    rewrite: Rewrite | None = None
    cost: Cost = field(default_factory=Cost)
    context: tuple[Message, ...] = ()
    """The messages of the context with which the edge begins, if they are not those above it. Empty in old records."""

    @property
    def num_tokens(self) -> int:
        return sum(len(segment) for segment in self.segments)


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The prefix after an edge."""

    parent: int | None
    """Index in `Tree.nodes`, smaller than the node's own; None for the root."""
    edge: Edge
    outcome: TurnOutcome | None = None
    """Set exactly where the edge ends a turn."""
    ending: Ending | None = None
    """Set on a leaf at which an episode ended; a leaf without one was left unfinished."""
    error: str | None = None
    """For an `ERROR_*` ending: what failed, in one sentence."""
    stats: SearchStats | None = None

    @property
    def is_cut(self) -> bool:
        """True where a search did not keep the node."""
        return self.stats is not None and self.stats.pruned is not None


AnnotationLevel = Literal["node", "turn", "episode"]
"""What an annotation is of: a node, the turn that ends at it, or the episode that ended there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A named value that was computed after the tree had grown, such as a judge's or a reward model's."""

    name: str
    """Of what gave the value; unique for a level and a node."""
    level: AnnotationLevel
    node: int
    """Index in `Tree.nodes`: the node, the one at which the turn ends, or the leaf."""
    value: float | None
    """None exactly where `error` says why there is none."""
    verdict: str = ""
    """The words behind the value, where there are any."""
    error: str | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown level, a value that is not finite, and one beside an error."""
        if self.level not in get_args(AnnotationLevel):
            raise self._error("level", f"be one of {', '.join(get_args(AnnotationLevel))}", self.level)
        if (self.value is None) != (self.error is not None):
            raise self._error("value", "be left out exactly where an error says why", (self.value, self.error))
        if self.value is not None and not math.isfinite(self.value):
            raise self._error("value", "be finite", self.value)

    def _error(self, what: str, must: str, got: object) -> InvalidInput:
        where, do = f"annotation {self.name}, node {self.node}", "give a number, or an error in words"
        return InvalidInput.of(what, must, got, where=where, do=do)


class RecordedPrefix(NamedTuple):
    """Where a tree's episodes went on from: a state of another recorded tree, whose turns were replayed."""

    tree_id: str
    """Of the recorded tree."""
    node: int
    """The state, in that tree."""
    num_turns: int
    """Turns of every episode of this tree that were replayed, not sampled."""


PLAIN_PROMPT: Final = "plain"
"""Name in `Tree.prompts` of the context without the hint that the root's context has."""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """All that was sampled under one prompt."""

    id: str
    env_id: str
    task_id: str
    task_key: str
    """Content hash of the task."""
    split: Split
    seed: int
    """The env's reset seed."""
    nodes: tuple[Node, ...]
    """Parents before children; `nodes[0]` is the root, whose edge holds the prompt (nothing without tokens)."""
    source: Source = Source.POLICY
    annotations: tuple[Annotation, ...] = ()
    """Values that were computed after the tree had grown."""
    prompts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The tokens of the root's context rendered in other ways, by name: `plain` without the hint that it has."""
    messages: tuple[Message, ...] = ()
    """The prompt: what the policy was given first. Empty where the episode failed before, and in old records."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that the policy was given with the prompt. Empty in old records."""
    prefix: RecordedPrefix | None = None
    """What its first turns repeat; their actions are context, and were not sampled here. None: nothing."""

    def __post_init__(self) -> None:
        if not self.nodes:
            raise self._error("nodes", "hold at least the root", "none")
        for index, node in enumerate(self.nodes):
            self._check(index, node)
        if self.annotations:
            self._check_annotations()

    def _check(self, index: int, node: Node) -> None:
        edge = node.edge
        if (node.parent is None) != (index == 0) or (node.parent is not None and not 0 <= node.parent < index):
            raise self._error(f"parent of node {index}", "be an earlier node (None for the root alone)", node.parent)
        if index == 0 and (edge.ends_turn or edge.rewrite or any(s.trains for s in edge.segments)):
            raise self._error("root edge", "hold only the prompt", edge.segments)
        if index and not edge.segments and not edge.ends_turn and node.ending is None:
            raise self._error(f"edge of node {index}", "hold a segment, end a turn or end the episode", "nothing")
        if edge.ends_turn != (node.outcome is not None):
            raise self._error(f"outcome of node {index}", "be set exactly where the edge ends a turn", node.outcome)
        if edge.rewrite and (not edge.segments or edge.segments[0].origin is not Origin.PROMPT):
            raise self._error(f"rewriting edge of node {index}", "begin with the new PROMPT context", edge.segments)
        if node.parent is not None and self.nodes[node.parent].ending is not None:
            raise self._error(f"parent of node {index}", "not have ended its episode", node.parent)
        if (node.error is not None) != (node.ending is not None and node.ending.is_error):
            raise self._error(f"error of node {index}", "be set only with an ERROR_ ending", (node.ending, node.error))

    def _check_annotations(self) -> None:
        places = [(item.name, item.level, item.node) for item in self.annotations]
        if len(set(places)) < len(places):
            twice = next(place for number, place in enumerate(places) if place in places[:number])
            raise self._error("annotation", "be the only one of its name, level and node", twice)
        for item in self.annotations:
            node = self.nodes[item.node] if 0 <= item.node < len(self.nodes) else None
            if node is None:
                raise self._error(f"node of annotation {item.name}", f"be 0..{len(self.nodes) - 1}", item.node)
            if item.level == "episode" and node.ending is None:
                raise self._error(f"node of annotation {item.name}", "be one where an episode ended", item.node)
            if item.level == "turn" and not node.edge.ends_turn and node.ending is None:
                raise self._error(f"node of annotation {item.name}", "be one where a turn ended", item.node)

    def _error(self, what: str, must: str, got: object) -> InvalidInput:
        return InvalidInput.of(what, must, got, where=f"tree {self.id}", do="grow trees with TreeBuilder")

    def annotated(self, name: str, level: AnnotationLevel) -> Mapping[int, Annotation]:
        return {item.node: item for item in self.annotations if (item.name, item.level) == (name, level)}

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Child indices of every node, in order."""
        children: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            if node.parent is not None:
                children[node.parent].append(index)
        return tuple(tuple(indices) for indices in children)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Indices of the nodes at which an episode ended, in order; what is unfinished, or was cut, is no leaf."""
        return tuple(index for index, node in enumerate(self.nodes) if node.ending is not None and not node.is_cut)

    def path(self, index: int) -> tuple[int, ...]:
        path = [index]
        while (parent := self.nodes[path[-1]].parent) is not None:
            path.append(parent)
        return tuple(reversed(path))

    @property
    def cost(self) -> Cost:
        """Spending of the whole tree, each edge counted once."""
        return sum((node.edge.cost for node in self.nodes), Cost())

    @property
    def total_cost(self) -> Cost:
        """Spending of the whole tree and of its search, whose replays are on no edge."""
        root = self.nodes[0]
        return self.cost if root.stats is None else root.edge.cost + root.stats.spent
