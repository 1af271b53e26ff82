"""Builds the records of a report from trajectories, trees, samples and metrics.

A tree is shown with every node once, and with what a search and training knew of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Trajectory, Turn, trajectories
from envgym.core.tree import Annotation, Node, Rewrite, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.errors import InvalidInput
from envgym.report.data import (
    TRAIN,
    ComparisonData,
    EpisodeData,
    EvaluationData,
    MessageData,
    MetricRow,
    NodeData,
    PassRates,
    SegmentData,
    TaskCounts,
    ToolFailure,
    TreeData,
    TurnData,
)
from envgym.report.text import action_line, last_line, question_line, whole_characters
from envgym.stats import (
    Samples,
    bound_invalid,
    compare_paired,
    estimate_pass_rate,
    estimate_success,
    pass_at_k,
    pass_hat_k,
)
from envgym.stats.rates import powers_of_2, tasks_with, valid_samples

Successes = Mapping[str, Sequence[bool | None]]
"""Task id -> whether each of its samples succeeded; None where the sample is invalid."""

NodeAdvantage = float | tuple[float, ...]
"""Of a node: one value for every sampled token of its edge, or one per such token."""

_ACTION_ORIGINS = (Origin.POLICY, Origin.INJECTED, Origin.DEMONSTRATION)
_DIGITS = 6
"""Decimals kept of per-token numbers: a viewer shows four, and it halves the file."""


def build_metric_row(step: int, values: Mapping[str, float]) -> MetricRow:
    """Return the metrics of one train step; what is not finite becomes None."""
    return MetricRow(step=step, values={key: v if math.isfinite(v) else None for key, v in values.items()})


def build_evaluation(
    *,
    step: int,
    label: str,
    greedy: bool,
    successes: Successes,
    endings: Mapping[Ending, int] | None = None,
    costs: Mapping[str, float] | None = None,
    tool_failures: Sequence[ToolFailure] = (),
) -> EvaluationData:
    """Return an evaluation with its intervals, and pass@k, pass^k at k = 1, 2, 4 ... up to the samples of a task.

    pass@k is taken over the tasks that have at least k valid samples.
    """
    valid = valid_samples(successes)
    most = max(map(len, successes.values()), default=0)
    ks = [k for k in powers_of_2(most) if tasks_with(valid, k)]
    return EvaluationData(
        step=step,
        label=label,
        greedy=greedy,
        success=bound_invalid(successes),
        pass_rates=tuple(_pass_rates(valid, k) for k in ks) if most > 1 else (),
        endings=dict(endings or {}),
        tasks={
            task_id: TaskCounts(successes=values.count(True), valid=len(valid.get(task_id, ())), samples=len(values))
            for task_id, values in successes.items()
        },
        costs=dict(costs or {}),
        tool_failures=tuple(tool_failures),
    )


def build_comparison(
    *,
    label: str,
    before_step: int,
    before: Successes,
    after_step: int,
    after: Successes,
    rng: np.random.Generator,
) -> ComparisonData:
    """Return two evaluations paired by task; a task without a valid sample on either side is left out.

    Raises:
        InvalidInput: the tasks differ, or none has valid samples on both sides.
    """
    valid_before, valid_after = valid_samples(before), valid_samples(after)
    is_same = before.keys() == after.keys()
    paired = compare_paired(valid_before, valid_after, rng=rng, intersect=is_same)
    common = valid_before.keys() & valid_after.keys()
    return ComparisonData(
        label=label,
        before_step=before_step,
        after_step=after_step,
        before=estimate_success({task_id: valid_before[task_id] for task_id in common}),
        after=estimate_success({task_id: valid_after[task_id] for task_id in common}),
        paired=paired,
    )


def build_episode(
    trajectory: Trajectory,
    *,
    step: int,
    source: str = TRAIN,
    trained: bool = False,
    advantages: Sequence[NodeAdvantage] = (),
) -> EpisodeData:
    """Return one episode as it is shown.

    Args:
        trajectory: root to leaf.
        step: train step, or train steps done before the evaluation.
        source: `TRAIN`, or the label of the evaluation.
        trained: whether the episode was learned from (False for evaluations and for groups that a filter dropped).
        advantages: as `TrajectoryCredit.advantages`; empty where none were computed.
    """
    tree, path = trajectory.tree, trajectory.path
    if advantages and len(advantages) != len(path):
        must = f"match the {len(path)} nodes of the path"
        raise InvalidInput.of("advantages", must, len(advantages), where=f"tree {tree.id}", do="give all or none")
    by_node = dict(zip(path, advantages, strict=True)) if advantages else {}
    reward = trajectory.reward
    turns = tuple(_turn(trajectory, turn, trained, by_node) for turn in trajectory.turns)
    return EpisodeData(
        id=f"{source}/{step}/{tree.id}/{trajectory.leaf}",
        tree_id=tree.id,
        env_id=tree.env_id,
        task_id=tree.task_id,
        question=question_line(tree.messages, tree.nodes[0].edge.segments),
        answer=turns[-1].summary if turns else "",
        step=step,
        source=source,
        ending=trajectory.ending,
        reward=reward.value if isinstance(reward, Scored) else None,
        components=dict(reward.components) if isinstance(reward, Scored) else {},
        error=tree.nodes[trajectory.leaf].error or ("" if isinstance(reward, Scored) else reward.reason),
        prompt=edge_segments(tree.nodes[path[0]].edge.segments, trained=trained, advantage=None),
        messages=prompt_messages(tree),
        turns=turns,
    )


def prompt_messages(tree: Tree) -> tuple[MessageData, ...]:
    """Return the messages of a tree's prompt, where its policy was given those and no tokens."""
    return tuple(MessageData(role=message.role, text=message.content) for message in tree.messages)


def _turn(trajectory: Trajectory, turn: Turn, trained: bool, by_node: Mapping[int, NodeAdvantage]) -> TurnData:
    nodes = trajectory.tree.nodes
    segments = (
        segment
        for node in turn.nodes
        for segment in edge_segments(nodes[node].edge.segments, trained=trained, advantage=by_node.get(node))
    )
    return turn_data(tuple(segments), turn.outcome, turn.rewrite)


def turn_data(
    segments: tuple[SegmentData, ...],
    outcome: TurnOutcome | None,
    rewrite: Rewrite | None = None,
    *,
    is_whole: bool = True,
) -> TurnData:
    """Return a turn, or a part of one, as it is shown; without an outcome the env has not replied."""
    if outcome is not None and (is_whole or outcome.action.tool_calls):
        summary = action_line(outcome.action)
    else:
        written = (segment for segment in segments if segment.origin in _ACTION_ORIGINS)
        summary = last_line("".join("".join(segment.token_strings) for segment in written))
    scored = outcome.reward if outcome is not None and isinstance(outcome.reward, Scored) else None
    return TurnData(
        segments=segments,
        summary=summary,
        action="" if outcome is None else str(outcome.action),
        observation="" if outcome is None else str(outcome.observation),
        reward=None if scored is None else scored.value,
        components={} if scored is None else dict(scored.components),
        tool_errors=0 if outcome is None else outcome.tool_errors,
        rewrite=rewrite,
    )


def edge_segments(
    segments: Iterable[Segment], *, trained: bool, advantage: NodeAdvantage | None
) -> tuple[SegmentData, ...]:
    """Return the segments of one edge, its advantage spread over their sampled tokens."""
    shown: list[SegmentData] = []
    start = 0
    for segment in segments:
        size = len(segment)
        spread: tuple[float, ...] = ()
        if segment.trains and advantage is not None:
            spread = advantage[start : start + size] if isinstance(advantage, tuple) else (advantage,) * size
            start += size
        shown.append(
            SegmentData(
                origin=segment.origin,
                token_ids=segment.token_ids,
                token_strings=whole_characters(segment.token_strings)
                or tuple(f"⟨{token_id}⟩" for token_id in segment.token_ids),
                logprobs=_rounded(segment.behavior_logprobs or ()),
                trained=(True,) * size if trained and segment.trains else (),
                advantages=_rounded(spread),
                policy_version=segment.policy_version,
            )
        )
    return tuple(shown)


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(value, _DIGITS) for value in values)


def _pass_rates(valid: Samples, k: int) -> PassRates:
    enough = tasks_with(valid, k)
    at_k, hat_k = (estimate_pass_rate(formula, enough, k) for formula in (pass_at_k, pass_hat_k))
    return PassRates(k=k, at_k=at_k, hat_k=hat_k)


# ---- trees -----------------------------------------------------------------------------------------------------------


def build_tree(
    tree: Tree,
    *,
    step: int,
    source: str = TRAIN,
    advantages: Mapping[int, Sequence[NodeAdvantage]] | None = None,
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
    root, *others = (
        _node(
            node,
            turns[i],
            rewards[i],
            by_node[i],
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
    annotations: Sequence[Annotation],
    *,
    is_whole: bool,
) -> NodeData:
    edge = node.edge
    sampled = sum(len(segment) for segment in edge.segments if segment.trains)
    columns = [entry if isinstance(entry, tuple) else (entry,) * sampled for entry in entries.values()]
    advantage = tuple(_mean(values) for values in zip(*columns, strict=True)) if columns else None
    valid = [reward for reward in rewards if reward is not None]
    segments = edge_segments(edge.segments, trained=bool(columns), advantage=advantage)
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
    """Return for every node the entries of the episodes through it, by leaf."""
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
