"""Builds the records of a report from trajectories, samples and metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Trajectory, Turn
from envgym.core.tree import Rewrite, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.errors import InvalidInput
from envgym.report.data import (
    TRAIN,
    ComparisonData,
    EpisodeData,
    EvaluationData,
    MessageData,
    MetricRow,
    PassRates,
    SegmentData,
    TaskCounts,
    ToolFailure,
    TurnData,
)
from envgym.report.text import action_line, last_line, question_line, whole_characters
from envgym.runs.episodes import TokenScores
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
    token_scores: TokenScores = MappingProxyType({}),
) -> EpisodeData:
    """Return one episode as it is shown.

    Args:
        trajectory: root to leaf.
        step: train step, or train steps done before the evaluation.
        source: `TRAIN`, or the label of the evaluation.
        trained: whether the episode was learned from (False for evaluations and for groups that a filter dropped).
        advantages: as `TrajectoryCredit.advantages`; empty where none were computed.
        token_scores: what the learner computed of the episode's tokens; empty where it did not.
    """
    tree, path = trajectory.tree, trajectory.path
    if advantages and len(advantages) != len(path):
        must = f"match the {len(path)} nodes of the path"
        raise InvalidInput.of("advantages", must, len(advantages), where=f"tree {tree.id}", do="give all or none")
    by_node = dict(zip(path, advantages, strict=True)) if advantages else {}
    scores = scores_by_node(tree, trajectory.leaf, token_scores)
    reward = trajectory.reward
    turns = tuple(_turn(trajectory, turn, trained, by_node, scores) for turn in trajectory.turns)
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
    messages = () if tree.nodes[0].edge.segments else tree.messages
    return tuple(MessageData(role=message.role, text=message.content) for message in messages)


def _turn(
    trajectory: Trajectory,
    turn: Turn,
    trained: bool,
    by_node: Mapping[int, NodeAdvantage],
    scores: Mapping[int, Mapping[str, Sequence[float]]],
) -> TurnData:
    nodes = trajectory.tree.nodes
    segments = (
        segment
        for node in turn.nodes
        for segment in edge_segments(
            nodes[node].edge.segments, trained=trained, advantage=by_node.get(node), scores=scores.get(node)
        )
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
    segments: Iterable[Segment],
    *,
    trained: bool,
    advantage: NodeAdvantage | None,
    scores: Mapping[str, Sequence[float]] | None = None,
) -> tuple[SegmentData, ...]:
    """Return the segments of one edge, its advantage and the numbers of its sampled tokens spread over them."""
    data: list[SegmentData] = []
    start = 0
    for segment in segments:
        size = len(segment)
        spread: dict[str, tuple[float, ...]] = {}
        if segment.trains:
            spread = {name: _rounded(values[start : start + size]) for name, values in (scores or {}).items()}
            if advantage is not None:
                each = advantage[start : start + size] if isinstance(advantage, tuple) else (advantage,) * size
                spread["advantages"] = _rounded(each)
            start += size
        data.append(
            SegmentData(
                origin=segment.origin,
                token_ids=segment.token_ids,
                token_strings=whole_characters(segment.token_strings)
                or tuple(f"⟨{token_id}⟩" for token_id in segment.token_ids),
                logprobs=_rounded(segment.behavior_logprobs or ()),
                trained=(True,) * size if trained and segment.trains else (),
                **spread,
                policy_version=segment.policy_version,
            )
        )
    return tuple(data)


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(value, _DIGITS) for value in values)


def _pass_rates(valid: Samples, k: int) -> PassRates:
    enough = tasks_with(valid, k)
    at_k, hat_k = (estimate_pass_rate(formula, enough, k) for formula in (pass_at_k, pass_hat_k))
    return PassRates(k=k, at_k=at_k, hat_k=hat_k)


def scores_by_node(tree: Tree, leaf: int, scores: TokenScores) -> dict[int, dict[str, Sequence[float]]]:
    """Return, for every node of an episode's path, the numbers of its sampled tokens by name.

    Raises: InvalidInput: they are of another path.
    """
    path = tree.path(leaf) if scores and leaf in tree.leaves else ()
    if any(len(of_path) != len(path) for of_path in scores.values()):
        must, where = f"have {len(path)} entries, one per node of the path", f"tree {tree.id}, leaf {leaf}"
        got = {name: len(of_path) for name, of_path in scores.items()}
        raise InvalidInput.of("token scores", must, got, where=where, do="give those of its row")
    return {node: {name: of_path[at] for name, of_path in scores.items()} for at, node in enumerate(path)}
