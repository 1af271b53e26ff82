"""From groups to rows with value targets, where the credit reads a critic's values."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from envgym.core.trajectory import Group, Row
from envgym.trainer.batch.rows import TrainRow, ValueTarget, train_row, train_rows
from envgym.trainer.batch.spread import node_values, token_targets, token_values
from envgym.trainer.methods.protocols import CriticCredit, CriticCreditResult, TrajectoryCredit, TrajectoryValues

ComputeValues = Callable[[Sequence[TrainRow]], Sequence[Sequence[float]]]
"""The critic's values of rows: one per token, of the prefix before it, in each."""


class TrainingBatch(NamedTuple):
    """Some groups as training reads them."""

    credits: list[TrajectoryCredit]
    rows: list[TrainRow]


def build_critic_batch(
    groups: Sequence[Group], credit: CriticCredit, compute_values: ComputeValues, *, once: bool
) -> TrainingBatch:
    """Compute the values of every valid episode, credit the episodes, and return rows with value targets.

    Args:
        groups: with the rewards that the credit reads.
        credit: reads the values.
        compute_values: called once, with all rows.
        once: as for `train_rows`.
    """
    values = _values_of_episodes(groups, compute_values)
    remaining = iter(values)
    results = [
        result
        for group in groups
        for result in credit.estimate_advantages(group, [next(remaining) for _ in group.valid])
    ]
    credits = [result.credit for result in results]
    value_targets = [
        _value_targets(result, trajectory_values, row)
        for result, trajectory_values in zip(results, values, strict=True)
        for row in result.credit.trajectory.rows
        if any(row.loss_mask)
    ]
    rows = train_rows(credits, once=once)
    return TrainingBatch(
        credits, [replace(row, value_targets=targets) for row, targets in zip(rows, value_targets, strict=True)]
    )


def _values_of_episodes(groups: Sequence[Group], compute_values: ComputeValues) -> list[TrajectoryValues]:
    """Return the critic's values along every valid episode."""
    episodes = [episode for group in groups for episode in group.valid]
    sampled_rows = [row for episode in episodes for row in episode.rows if any(row.loss_mask)]
    rows = [train_row(row, (0.0,) * len(row)) for row in sampled_rows]
    values_of_rows = iter(compute_values(rows) if rows else ())
    return [
        node_values(
            episode, [next(values_of_rows) if any(row.loss_mask) else (0.0,) * len(row) for row in episode.rows]
        )
        for episode in episodes
    ]


def _value_targets(result: CriticCreditResult, values: TrajectoryValues, row: Row) -> tuple[ValueTarget | None, ...]:
    """Join the critic's values along a row with their targets."""
    pairs = zip(token_values(values, row), token_targets(result, row), strict=True)
    return tuple(None if target is None else ValueTarget(value, target) for value, target in pairs)
