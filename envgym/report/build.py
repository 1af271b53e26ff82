"""Builds the records of a report from trajectories, samples and metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from envgym.core.segments import Segment
from envgym.core.trajectory import Trajectory, Turn
from envgym.core.tree import Rewrite
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.errors import InvalidInput, sentence
from envgym.report.data import (
    TRAIN,
    ComparisonData,
    EpisodeData,
    EvaluationData,
    MetricRow,
    PassRates,
    SegmentData,
    TurnData,
)
from envgym.stats import (
    UNIT_RANGE,
    Samples,
    bound_invalid,
    compare_paired,
    estimate_pass_rate,
    estimate_success,
    pass_at_k,
    pass_hat_k,
    task_means,
)

Successes = Mapping[str, Sequence[bool | None]]
"""Task id -> whether each of its samples succeeded; None where the sample is invalid."""

NodeAdvantages = Sequence[float | tuple[float, ...]]
"""One entry per node of a path: a float for every sampled token of its edge, or one entry per such token."""

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
    rng: np.random.Generator,
    endings: Mapping[Ending, int] | None = None,
    costs: Mapping[str, float] | None = None,
) -> EvaluationData:
    """Return an evaluation with its intervals, and pass@k, pass^k at k = 1, 2, 4 ... up to the samples of a task.

    pass@k is taken over the tasks that have at least k valid samples.
    """
    valid = _valid(successes)
    most = max(map(len, successes.values()), default=0)
    ks = [k for k in (2**i for i in range(most.bit_length())) if any(len(v) >= k for v in valid.values())]
    means = task_means(valid) if valid else {}
    return EvaluationData(
        step=step,
        label=label,
        greedy=greedy,
        success=bound_invalid(successes, rng=rng),
        pass_rates=tuple(_pass_rates(valid, k, rng) for k in ks) if most > 1 else (),
        endings=dict(endings or {}),
        task_means={task_id: means.get(task_id) for task_id in successes},
        costs=dict(costs or {}),
    )


def build_comparison(
    *,
    label: str,
    before_step: int,
    before: Successes,
    after_step: int,
    after: Successes,
    rng: np.random.Generator,
    intersect: bool = False,
) -> ComparisonData:
    """Return two evaluations paired by task; a task without a valid sample on either side is left out.

    Raises:
        InvalidInput: the tasks differ and `intersect` is not set, or none is common.
    """
    valid_before, valid_after = _valid(before), _valid(after)
    paired = compare_paired(
        valid_before,
        valid_after,
        rng=rng,
        intersect=intersect or before.keys() == after.keys(),
        value_range=UNIT_RANGE,
    )
    common = valid_before.keys() & valid_after.keys()
    return ComparisonData(
        label=label,
        before_step=before_step,
        after_step=after_step,
        before=estimate_success({task_id: valid_before[task_id] for task_id in common}, rng=rng),
        after=estimate_success({task_id: valid_after[task_id] for task_id in common}, rng=rng),
        paired=paired,
    )


def build_episode(
    trajectory: Trajectory,
    *,
    step: int,
    source: str = TRAIN,
    trained: bool = False,
    advantages: NodeAdvantages = (),
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
        raise InvalidInput(
            sentence("advantages", must, len(advantages), where=f"tree {tree.id}", do="give all or none")
        )
    by_node = dict(zip(path, advantages, strict=True)) if advantages else {}
    reward = trajectory.reward
    return EpisodeData(
        id=f"{source}/{step}/{tree.id}/{trajectory.leaf}",
        env_id=tree.env_id,
        task_id=tree.task_id,
        step=step,
        source=source,
        ending=trajectory.ending,
        reward=reward.value if isinstance(reward, Scored) else None,
        components=dict(reward.components) if isinstance(reward, Scored) else {},
        error=tree.nodes[trajectory.leaf].error or ("" if isinstance(reward, Scored) else reward.reason),
        prompt=edge_segments(tree.nodes[path[0]].edge.segments, trained=trained, advantage=None),
        turns=tuple(_turn(trajectory, turn, trained, by_node) for turn in trajectory.turns),
    )


def _turn(
    trajectory: Trajectory, turn: Turn, trained: bool, by_node: Mapping[int, float | tuple[float, ...]]
) -> TurnData:
    nodes = trajectory.tree.nodes
    segments = (
        segment
        for node in turn.nodes
        for segment in edge_segments(nodes[node].edge.segments, trained=trained, advantage=by_node.get(node))
    )
    return turn_data(tuple(segments), turn.outcome, turn.rewrite)


def turn_data(
    segments: tuple[SegmentData, ...], outcome: TurnOutcome | None, rewrite: Rewrite | None = None
) -> TurnData:
    """Return a turn, or a part of one, as it is shown; without an outcome the env has not replied."""
    scored = outcome.reward if outcome is not None and isinstance(outcome.reward, Scored) else None
    return TurnData(
        segments=segments,
        action="" if outcome is None else str(outcome.action),
        observation="" if outcome is None else str(outcome.observation),
        reward=None if scored is None else scored.value,
        components={} if scored is None else dict(scored.components),
        tool_errors=0 if outcome is None else outcome.tool_errors,
        rewrite=rewrite,
    )


def edge_segments(
    segments: Iterable[Segment], *, trained: bool, advantage: float | tuple[float, ...] | None
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
                token_strings=segment.token_strings or tuple(f"⟨{token_id}⟩" for token_id in segment.token_ids),
                logprobs=_rounded(segment.behavior_logprobs or ()),
                trained=(True,) * size if trained and segment.trains else (),
                advantages=_rounded(spread),
                policy_version=segment.policy_version,
            )
        )
    return tuple(shown)


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(value, _DIGITS) for value in values)


def _valid(successes: Successes) -> dict[str, list[bool]]:
    """Return the valid samples of the tasks that have one."""
    kept = {task_id: [value for value in values if value is not None] for task_id, values in successes.items()}
    return {task_id: values for task_id, values in kept.items() if values}


def _pass_rates(valid: Samples, k: int, rng: np.random.Generator) -> PassRates:
    enough = {task_id: values for task_id, values in valid.items() if len(values) >= k}
    at_k, hat_k = (estimate_pass_rate(formula, enough, k, rng=rng) for formula in (pass_at_k, pass_hat_k))
    return PassRates(k=k, at_k=at_k, hat_k=hat_k)
