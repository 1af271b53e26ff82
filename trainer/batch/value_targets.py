"""From groups to rows where credit reads a critic: its values to nodes, advantages and targets back to rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from envgym.core.trajectory import Group, Row
from envgym.trainer.batch.rows import TrainRow, ValueTarget, train_row, train_rows
from envgym.trainer.batch.spread import node_values, token_targets, token_values
from envgym.trainer.methods.protocols import CriticCredit, CriticCreditResult, TrajectoryCredit, TrajectoryValues

ValuesOf = Callable[[Sequence[TrainRow]], Sequence[Sequence[float]]]
"""What the critic says of rows: one value per token, of the prefix before it, in each."""


class TrainingBatch(NamedTuple):
    """Some groups as training reads them."""

    credits: list[TrajectoryCredit]
    rows: list[TrainRow]


def judge(groups: Sequence[Group], credit: CriticCredit, values_of: ValuesOf, *, once: bool) -> TrainingBatch:
    """Compute the critic's values of every valid episode, credit them, and return rows with value targets.

    Args:
        groups: with the rewards that credit sees.
        credit: reads the values.
        values_of: asked once, about all rows.
        once: as for `train_rows`.
    """
    said = _said(groups, values_of)
    given = iter(said)
    judged = [
        found for group in groups for found in credit.estimate_advantages(group, [next(given) for _ in group.valid])
    ]
    credits = [found.credit for found in judged]
    value_targets = [
        _lessons(found, values, row)
        for found, values in zip(judged, said, strict=True)
        for row in found.credit.trajectory.rows
        if any(row.loss_mask)
    ]
    rows = train_rows(credits, once=once)
    return TrainingBatch(
        credits, [replace(row, value_targets=taught) for row, taught in zip(rows, value_targets, strict=True)]
    )


def _said(groups: Sequence[Group], values_of: ValuesOf) -> list[TrajectoryValues]:
    """Return the critic's values along every valid episode."""
    episodes = [episode for group in groups for episode in group.valid]
    asked = [row for episode in episodes for row in episode.rows if any(row.loss_mask)]
    answers = iter(values_of([train_row(row, (0.0,) * len(row)) for row in asked]) if asked else ())
    return [
        node_values(episode, [next(answers) if any(row.loss_mask) else (0.0,) * len(row) for row in episode.rows])
        for episode in episodes
    ]


def _lessons(found: CriticCreditResult, values: TrajectoryValues, row: Row) -> tuple[ValueTarget | None, ...]:
    """Join what the critic said along a row with what it should have said."""
    pairs = zip(token_values(values, row), token_targets(found, row), strict=True)
    return tuple(None if target is None else ValueTarget(value, target) for value, target in pairs)
