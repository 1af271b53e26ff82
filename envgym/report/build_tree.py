"""Builds what a report shows of a whole tree: every node once, with what a search and training knew of it."""

from collections.abc import Mapping, Sequence

from envgym.core.trajectory import trajectories
from envgym.core.tree import Node, Tree
from envgym.core.turns import Scored
from envgym.errors import InvalidInput, sentence
from envgym.report.build import NodeAdvantages, edge_segments, turn_data
from envgym.report.data import TRAIN, NodeData, TreeData

_Entry = float | tuple[float, ...]


def build_tree(
    tree: Tree,
    *,
    step: int,
    source: str = TRAIN,
    advantages: Mapping[int, NodeAdvantages] | None = None,
    dropped: str = "",
) -> TreeData:
    """Return one tree as it is shown.

    Args:
        tree: as it was recorded.
        step: train step, or train steps done before the evaluation.
        source: `TRAIN`, or the label of the evaluation.
        advantages: leaf -> `TrajectoryCredit.advantages` of the episode that ended there, for those learned from.
        dropped: why a filter dropped the tree's group.

    Raises:
        InvalidInput: the advantages are of another tree.
    """
    by_node = _by_node(tree, advantages or {})
    rewards = _rewards_below(tree)
    turns = _turns(tree)
    return TreeData(
        id=view_id(source, step, tree.id),
        tree_id=tree.id,
        env_id=tree.env_id,
        task_id=tree.task_id,
        split=tree.split,
        seed=str(tree.seed),
        step=step,
        source=source,
        dropped=dropped,
        nodes=tuple(_node(node, turns[i], rewards[i], by_node[i]) for i, node in tree.walk()),
        cost=tree.cost,
    )


def view_id(source: str, step: int, tree_id: str) -> str:
    """Return the name of a tree that is unique in its run."""
    return f"{source}/{step}/{tree_id}"


def _node(node: Node, turn: int, rewards: Sequence[float | None], entries: Mapping[int, _Entry]) -> NodeData:
    edge = node.edge
    sampled = sum(len(segment) for segment in edge.segments if segment.trains)
    columns = [_column(entry, sampled) for entry in entries.values()]
    advantage = tuple(_mean(values) for values in zip(*columns, strict=True)) if columns else None
    valid = [reward for reward in rewards if reward is not None]
    segments = edge_segments(edge.segments, trained=bool(columns), advantage=advantage)
    return NodeData(
        parent=node.parent,
        turn=turn,
        ends_turn=edge.ends_turn,
        content=turn_data(segments, node.outcome, edge.rewrite),
        ending=node.ending,
        error=node.error or "",
        num_episodes=len(rewards),
        num_valid=len(valid),
        mean_reward=_mean(valid) if valid else None,
        advantages={leaf: _mean(column) for leaf, column in zip(entries, columns, strict=True) if column},
        cost=edge.cost,
        stats=node.stats,
    )


def _turns(tree: Tree) -> list[int]:
    """Return the turn of every node: how many turns ended above it."""
    turns = [-1]
    for node in tree.nodes[1:]:
        assert node.parent is not None, "only the root has none"
        is_next = tree.nodes[node.parent].edge.ends_turn or node.parent == 0
        turns.append(turns[node.parent] + is_next)
    return turns


def _rewards_below(tree: Tree) -> list[list[float | None]]:
    """Return for every node the rewards of the episodes through it; None where invalid."""
    rewards: list[list[float | None]] = [[] for _ in tree.nodes]
    for episode in trajectories(tree):
        reward = episode.reward
        for index in episode.path:
            rewards[index].append(reward.value if isinstance(reward, Scored) else None)
    return rewards


def _by_node(tree: Tree, advantages: Mapping[int, NodeAdvantages]) -> list[dict[int, _Entry]]:
    """Return for every node the entries of the episodes through it, by leaf."""
    entries_of: list[dict[int, _Entry]] = [{} for _ in tree.nodes]
    for leaf, entries in advantages.items():
        path = tree.path(leaf) if leaf in tree.leaves else ()
        if len(entries) != len(path):
            must = f"be of its leaves {tree.leaves}, one entry per node of the path"
            got = f"{len(entries)} entries for node {leaf}"
            raise InvalidInput(sentence("advantages", must, got, where=f"tree {tree.id}", do="give those of its row"))
        for index, entry in zip(path, entries, strict=True):
            entries_of[index][leaf] = entry
    return entries_of


def _column(entry: _Entry, sampled: int) -> tuple[float, ...]:
    """Return one advantage per sampled token."""
    return entry if isinstance(entry, tuple) else (entry,) * sampled


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
