"""From groups to rows with value targets, where the credit reads a critic's values."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from envgym.core.trajectory import Group
from envgym.trainer.batch.rows import TrainRow, ValueTarget, train_row, train_rows
from envgym.trainer.batch.spread import node_values, token_targets
from envgym.trainer.methods.protocols import CriticCredit, TrajectoryCredit

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
    episodes = [episode for group in groups for episode in group.valid]
    sampled_rows = [row for episode in episodes for row in episode.rows if any(row.loss_mask)]
    values_of_rows = compute_values([train_row(row, (0.0,) * len(row)) for row in sampled_rows]) if sampled_rows else ()
    remaining = iter(values_of_rows)
    values = iter(
        [
            node_values(episode, [next(remaining) if any(row.loss_mask) else (0.0,) * len(row) for row in episode.rows])
            for episode in episodes
        ]
    )
    results = [
        result for group in groups for result in credit.estimate_advantages(group, [next(values) for _ in group.valid])
    ]
    targets_of_rows = [
        token_targets(result, row) for result in results for row in result.credit.trajectory.rows if any(row.loss_mask)
    ]
    credits = [result.credit for result in results]
    rows = train_rows(credits, once=once)
    return TrainingBatch(
        credits,
        [
            replace(
                row,
                value_targets=tuple(
                    None if target is None else ValueTarget(value, target)
                    for value, target in zip(values_of_row, targets, strict=True)
                ),
            )
            for row, values_of_row, targets in zip(rows, values_of_rows, targets_of_rows, strict=True)
        ],
    )
