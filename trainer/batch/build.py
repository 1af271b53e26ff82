"""From groups to the rows of a step: scores along the episodes, their credit, and rows with value targets."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from envgym.core.segments import Origin
from envgym.core.trajectory import Group, Trajectory
from envgym.trainer.batch.rows import TRAINED, TrainRow, ValueTarget, train_row, train_rows
from envgym.trainer.batch.spread import node_values, token_targets
from envgym.trainer.methods.protocols import (
    CRITIC_VALUES,
    BatchCredit,
    Credit,
    CreditContext,
    TrajectoryCredit,
    TrajectoryValues,
)

ComputeScores = Callable[[Sequence[TrainRow]], Sequence[Sequence[float]]]
"""One number per token of rows, in each; the critic's is its value of the prefix before the token."""


class TrainingBatch(NamedTuple):
    """Some groups as training reads them."""

    credits: list[TrajectoryCredit]
    rows: list[TrainRow]


def assign_credits(
    credit: Credit | BatchCredit, groups: Sequence[Group], context: CreditContext | None = None
) -> list[TrajectoryCredit]:
    """Return the credits of the groups' valid episodes, assigned group by group or all together."""
    if isinstance(credit, BatchCredit):
        return list(credit.assign(groups, CreditContext() if context is None else context))
    return [entry for group in groups for entry in credit(group)]


def build_batch(
    groups: Sequence[Group],
    credit: Credit | BatchCredit,
    *,
    once: bool,
    origins: Set[Origin] = TRAINED,
    step: int = 0,
    scores: Mapping[str, ComputeScores] | None = None,
) -> TrainingBatch:
    """Compute the scores of every valid episode, credit the episodes, and return rows.

    Args:
        groups: with the rewards that the credit reads.
        credit: assigns advantages.
        once: as for `train_rows`.
        origins: as for `train_rows`.
        step: the train step, from 0.
        scores: name -> what computes it, called once with all rows; None: the credit reads none.
    """
    episodes = [episode for group in groups for episode in group.valid]
    of_rows = {name: _scores_of_rows(episodes, compute) for name, compute in (scores or {}).items()}
    context = CreditContext(
        step=step,
        scores={
            name: [_along_path(episode, found[_key(episode)]) for episode in episodes]
            for name, found in of_rows.items()
        },
    )
    credits = assign_credits(credit, groups, context)
    rows = train_rows(credits, once=once, groups=groups, origins=origins)
    if CRITIC_VALUES in of_rows:
        rows = _with_value_targets(rows, credits, of_rows[CRITIC_VALUES])
    return TrainingBatch(credits, rows)


_Key = tuple[int, int]
"""Of an episode in this batch: its tree's identity (names of trees may repeat), and its leaf."""


def _key(episode: Trajectory) -> _Key:
    return id(episode.tree), episode.leaf


def _scores_of_rows(episodes: Sequence[Trajectory], compute: ComputeScores) -> dict[_Key, list[Sequence[float]]]:
    """Compute a score of every episode's rows that train, in order."""
    rows = [row for episode in episodes for row in episode.rows if any(row.loss_mask)]
    remaining = iter(compute([train_row(row, (0.0,) * len(row)) for row in rows]) if rows else ())
    return {_key(episode): [next(remaining) for row in episode.rows if any(row.loss_mask)] for episode in episodes}


def _along_path(episode: Trajectory, of_rows: Sequence[Sequence[float]]) -> TrajectoryValues:
    """Lay a score of the rows that train along the episode's path; the other rows have no sampled token."""
    remaining = iter(of_rows)
    return node_values(episode, [next(remaining) if any(row.loss_mask) else (0.0,) * len(row) for row in episode.rows])


def _with_value_targets(
    rows: Sequence[TrainRow], credits: Sequence[TrajectoryCredit], values: Mapping[_Key, Sequence[Sequence[float]]]
) -> list[TrainRow]:
    """Join the rows of the credits with the critic's values and its targets."""
    values_of_rows = [of_row for credit in credits for of_row in values[_key(credit.trajectory)]]
    targets_of_rows = [
        token_targets(credit, row) for credit in credits for row in credit.trajectory.rows if any(row.loss_mask)
    ]
    return [
        replace(
            row,
            value_targets=tuple(
                None if target is None else ValueTarget(value, target)
                for value, target in zip(values_of_row, targets, strict=True)
            ),
        )
        for row, values_of_row, targets in zip(rows, values_of_rows, targets_of_rows, strict=True)
    ]
