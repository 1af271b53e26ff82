"""Builds the record of a tree: every node once, with what a search and training knew of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from envgym.core.trajectory import trajectories
from envgym.core.tree import Annotation, Node, Tree
from envgym.core.turns import Scored
from envgym.errors import InvalidInput
from envgym.report.build import NodeAdvantage, edge_segments, scores_by_node, turn_data
from envgym.report.data import TRAIN, NodeData, TreeData
from envgym.report.text import question_line
from envgym.runs.episodes import TokenScores


def build_tree(
    tree: Tree,
    *,
    step: int,
    source: str = TRAIN,
    advantages: Mapping[int, Sequence[NodeAdvantage]] | None = None,
    token_scores: Mapping[int, TokenScores] | None = None,
    dropped: str = "",
) -> TreeData:
    """Return one tree as it is shown.

    Args:
        tree: as it was recorded.
        step: train step, or train steps done before the evaluation.
        source: `TRAIN`, or the label of the evaluation.
        advantages: leaf -> `TrajectoryCredit.advantages` of the episode that ended there, for those learned from.
        token_scores: leaf -> what the learner computed of the episode's tokens; a node shows those of its first one.
        dropped: why a filter dropped the tree's group.

    Raises:
        InvalidInput: the advantages are of another tree.
    """
    by_node = _by_node(tree, advantages or {})
    scores: dict[int, Mapping[str, Sequence[float]]] = {}
    for leaf, of_episode in reversed(list((token_scores or {}).items())):
        scores |= scores_by_node(tree, leaf, of_episode)
    rewards = _rewards_below(tree)
    turns = _turns(tree)
    root, *others = (
        _node(
            node,
            turns[i],
            rewards[i],
            by_node[i],
            scores.get(i),
            [item for item in tree.annotations if item.node == i],
            is_whole=not node.parent or tree.nodes[node.parent].edge.ends_turn,
        )
        for i, node in enumerate(tree.nodes)
    )
    question = question_line(tree.messages, tree.nodes[0].edge.segments)
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
        nodes=(replace(root, content=replace(root.content, summary=question)), *others),
        cost=tree.cost,
    )


def view_id(source: str, step: int, tree_id: str) -> str:
    """Return the name of a tree that is unique in its run."""
    return f"{source}/{step}/{tree_id}"


def _node(
    node: Node,
    turn: int,
    rewards: Sequence[float | None],
    entries: Mapping[int, NodeAdvantage],
    scores: Mapping[str, Sequence[float]] | None,
    annotations: Sequence[Annotation],
    *,
    is_whole: bool,
) -> NodeData:
    edge = node.edge
    sampled = sum(len(segment) for segment in edge.segments if segment.trains)
    columns = [entry if isinstance(entry, tuple) else (entry,) * sampled for entry in entries.values()]
    advantage = tuple(_mean(values) for values in zip(*columns, strict=True)) if columns else None
    valid = [reward for reward in rewards if reward is not None]
    segments = edge_segments(edge.segments, trained=bool(columns), advantage=advantage, scores=scores)
    return NodeData(
        parent=node.parent,
        turn=turn,
        ends_turn=edge.ends_turn,
        content=turn_data(segments, node.outcome, edge.rewrite, is_whole=is_whole),
        ending=node.ending,
        error=node.error or "",
        num_episodes=len(rewards),
        num_valid=len(valid),
        mean_reward=_mean(valid) if valid else None,
        advantages={leaf: _mean(column) for leaf, column in zip(entries, columns, strict=True) if column},
        cost=edge.cost,
        stats=node.stats,
        annotations=tuple(annotations),
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


def _by_node(tree: Tree, advantages: Mapping[int, Sequence[NodeAdvantage]]) -> list[dict[int, NodeAdvantage]]:
    entries_of: list[dict[int, NodeAdvantage]] = [{} for _ in tree.nodes]
    for leaf, entries in advantages.items():
        path = tree.path(leaf) if leaf in tree.leaves else ()
        if len(entries) != len(path):
            must = f"be of its leaves {tree.leaves}, one entry per node of the path"
            got = f"{len(entries)} entries for node {leaf}"
            raise InvalidInput.of("advantages", must, got, where=f"tree {tree.id}", do="give those of its row")
        for index, entry in zip(path, entries, strict=True):
            entries_of[index][leaf] = entry
    return entries_of


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
