"""Trajectories, turns, rows and groups: views of the tree, from the root to one leaf.

Turns are numbered from 0. A row is one token sequence that training reads; a rewrite starts another row, in
which everything rendered anew is PROMPT, so nothing trains twice.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from envgym.core.segments import Origin, Segment
from envgym.core.tree import Rewrite, Source, Tree
from envgym.core.turns import Cost, Ending, Invalid, Reward, Scored, TurnOutcome, total
from envgym.errors import InvalidInput

CHAT_ENV = "chat/"
"""Beginning of the env id of imported conversations. One with a reward has it as a component too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One action of the policy and the env's reply, joined from the edges between two turn ends."""

    index: int
    nodes: tuple[int, ...]
    """Tree nodes whose edges make up the turn; the last one ends it (unless the episode was cut inside it)."""
    segments: tuple[Segment, ...]
    outcome: TurnOutcome | None
    """None where the episode was cut before the env replied."""
    rewrite: Rewrite | None
    cost: Cost

    @property
    def policy_version(self) -> int | None:
        """Smallest version that sampled in this turn; None where nothing was sampled."""
        versions = [s.policy_version for s in self.segments if s.policy_version is not None]
        return min(versions, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One token sequence that training reads; every field below `tree_id` but the last has one entry a token."""

    tree_id: str
    leaf: int
    rewrite: Rewrite | None
    """What started this row; None for an episode's first."""
    segments: tuple[Segment, ...]
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """True exactly on tokens that the policy sampled and that train."""
    behavior_logprobs: tuple[float, ...]
    """Nats; 0.0 where the policy did not sample."""
    nodes: tuple[int, ...]
    """Tree node whose edge holds the token: equal (node, offset) in two rows of a tree is one shared token."""
    turns: tuple[int, ...]
    """Turn index of the token; -1 before the first action of the episode."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One episode's segments, root to leaf, with their rewards."""

    tree: Tree
    leaf: int

    def __post_init__(self) -> None:
        if not 0 <= self.leaf < len(self.tree.nodes) or self.tree.nodes[self.leaf].ending is None:
            raise InvalidInput.of(
                "leaf",
                f"be one of {self.tree.leaves}",
                self.leaf,
                where=f"tree {self.tree.id}",
                do="pick an ended leaf",
            )

    def __repr__(self) -> str:
        """Return task, ending, reward and size in one line; `turns` and `tree` hold the rest."""
        reward = f"invalid ({self.reward.reason})" if isinstance(self.reward, Invalid) else f"{self.reward.value:g}"
        reward = reward if self.has_reward else "none"
        size = f"{len(self.turns)} turns, {self.num_sampled} sampled tokens"
        return f"<Trajectory {self.tree.env_id} {self.tree.task_id}: {self.ending.value}, reward {reward}, {size}>"

    @property
    def ending(self) -> Ending:
        ending = self.tree.nodes[self.leaf].ending
        assert ending is not None, "checked when built"
        return ending

    @cached_property
    def path(self) -> tuple[int, ...]:
        """Node indices from the root to the leaf."""
        return self.tree.path(self.leaf)

    @cached_property
    def turn_nodes(self) -> tuple[tuple[int, ...], ...]:
        """The tree nodes of every turn, in order."""
        return _turn_nodes(self.tree, self.path)

    @cached_property
    def outcomes(self) -> tuple[TurnOutcome | None, ...]:
        """The outcome of every turn, in order; None where the episode was cut before the env replied."""
        return tuple(self.tree.nodes[nodes[-1]].outcome for nodes in self.turn_nodes)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The episode's turns in order; the last may lack an outcome where the episode was cut inside it."""
        return tuple(_turn(self.tree, index, nodes) for index, nodes in enumerate(self.turn_nodes))

    @cached_property
    def reward(self) -> Reward:
        """Sum of the turn rewards; invalid where any turn is, or where infrastructure ended the episode."""
        if self.ending.is_error:
            return Invalid(cause=self.ending, reason=self.tree.nodes[self.leaf].error or self.ending.value)
        return total(outcome.reward for outcome in self.outcomes if outcome is not None)

    @property
    def is_valid(self) -> bool:
        """True where the reward is a value."""
        return not isinstance(self.reward, Invalid)

    @property
    def has_reward(self) -> bool:
        """False for an imported conversation without a reward, whose turns are recorded as paying 0."""
        is_imported = self.tree.source is Source.DEMONSTRATION and self.tree.env_id.startswith(CHAT_ENV)
        return not is_imported or (isinstance(self.reward, Scored) and bool(self.reward.components))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The episode's token sequences, one more than it has rewrites."""
        rows: list[Row] = []
        open_path: list[int] = []
        for index in self.path:
            if self.tree.nodes[index].edge.rewrite:
                rows.append(self._row(open_path))
                open_path = []
            open_path.append(index)
        rows.append(self._row(open_path))
        return tuple(rows)

    @cached_property
    def _turn_of_node(self) -> dict[int, int]:
        return {node: turn for turn, nodes in enumerate(self.turn_nodes) for node in nodes}

    def _row(self, path: Sequence[int]) -> Row:
        segments: list[Segment] = []
        token_ids, loss_mask, logprobs = list[int](), list[bool](), list[float]()
        nodes, turns = list[int](), list[int]()
        for index in path:
            turn = self._turn_of_node.get(index, -1)
            for segment in self.tree.nodes[index].edge.segments:
                num_tokens = len(segment.token_ids)
                segments.append(segment)
                token_ids += segment.token_ids
                loss_mask += [segment.trains] * num_tokens
                logprobs += segment.behavior_logprobs or [0.0] * num_tokens
                nodes += [index] * num_tokens
                turns += [turn] * num_tokens
        return Row(
            tree_id=self.tree.id,
            leaf=self.leaf,
            rewrite=self.tree.nodes[path[0]].edge.rewrite,
            segments=tuple(segments),
            token_ids=tuple(token_ids),
            loss_mask=tuple(loss_mask),
            behavior_logprobs=tuple(logprobs),
            nodes=tuple(nodes),
            turns=tuple(turns),
        )

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy sampled along the path."""
        return sum(
            len(segment)
            for index in self.path
            for segment in self.tree.nodes[index].edge.segments
            if segment.origin is Origin.POLICY
        )


def _turn_nodes(tree: Tree, path: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    ends = [place for place, index in enumerate(path) if tree.nodes[index].edge.ends_turn]
    turns = [path[before + 1 : end + 1] for before, end in pairwise((0, *ends))]
    cut = path[ends[-1] + 1 if ends else 1 :]
    if any(tree.nodes[index].edge.segments for index in cut):
        turns.append(cut)
    return tuple(turns)


def _turn(tree: Tree, index: int, nodes: tuple[int, ...]) -> Turn:
    edges = [tree.nodes[node].edge for node in nodes]
    return Turn(
        index=index,
        nodes=nodes,
        segments=tuple(segment for edge in edges for segment in edge.segments),
        outcome=tree.nodes[nodes[-1]].outcome,
        rewrite=next((edge.rewrite for edge in edges if edge.rewrite), None),
        cost=sum((edge.cost for edge in edges[1:]), edges[0].cost),
    )


def trajectories(tree: Tree) -> tuple[Trajectory, ...]:
    """Return the tree's episodes, one per ended leaf, in order."""
    return tuple(Trajectory(tree=tree, leaf=leaf) for leaf in tree.leaves)


@dataclass(frozen=True, kw_only=True)
class StartState:
    """A state inside a recorded episode, from which other episodes go on."""

    tree: Tree
    node: int
    """Where a turn ended and the episode went on."""

    def __post_init__(self) -> None:
        is_node = 0 < self.node < len(self.tree.nodes)
        node = self.tree.nodes[self.node] if is_node else None
        if node is None or not node.edge.ends_turn or node.ending is not None:
            must, do = "be one where a turn ended and the episode went on", "take one of start_states(tree)"
            raise InvalidInput.of("start state", must, f"node {self.node}", where=f"tree {self.tree.id}", do=do)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The recorded turns that lead to the state, in order; at least one."""
        nodes = _turn_nodes(self.tree, self.tree.path(self.node))
        return tuple(_turn(self.tree, index, of_turn) for index, of_turn in enumerate(nodes))


@dataclass(frozen=True, kw_only=True)
class Group:
    """Episodes that share a baseline: the trees of one task."""

    key: str
    trees: tuple[Tree, ...]

    def __post_init__(self) -> None:
        """Refuse trees of different tasks: a baseline never crosses tasks."""
        keys = {tree.task_key for tree in self.trees}
        if len(keys) > 1:
            raise InvalidInput.of(
                "group", "hold trees of one task", sorted(keys), where=self.key, do="group by task_key"
            )

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Every episode, valid or not, tree by tree."""
        return tuple(item for tree in self.trees for item in trajectories(tree))

    @cached_property
    def valid(self) -> tuple[Trajectory, ...]:
        """The episodes whose reward is a value: the only ones that statistics and training see."""
        return tuple(item for item in self.trajectories if item.is_valid)


def start_states(tree: Tree) -> tuple[StartState, ...]:
    """Return the states of a recorded tree from which episodes can go on, in the order of its nodes."""
    nodes = enumerate(tree.nodes)
    return tuple(
        StartState(tree=tree, node=index) for index, node in nodes if node.edge.ends_turn and node.ending is None
    )


def share_counts(rows: Iterable[Row]) -> list[tuple[int, ...]]:
    """Count, for every token of every row, the rows that hold this very token of the tree (at least 1).

    A recipe that trains shared tokens `once` weighs a token by 1 / its count; `per_path` weighs it by 1.
    """
    rows = list(rows)
    through = Counter((row.tree_id, node) for row in rows for node in set(row.nodes))
    return [tuple(through[row.tree_id, node] for node in row.nodes) for row in rows]
