"""From groups to the rows of a step: scores along the episodes, their credit, and rows with value targets."""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import torch

from envgym.core.segments import Origin
from envgym.core.trajectory import Group
from envgym.errors import InvalidInput
from envgym.trainer.batch.rows import TRAINED, TrainRow, ValueTarget, pad, train_rows
from envgym.trainer.batch.scores import (
    ComputeScores,
    EpisodeScores,
    along_path,
    key_of,
    score_episodes,
    trained_rows,
)
from envgym.trainer.batch.spread import token_targets
from envgym.trainer.methods.losses.base import LossBatch
from envgym.trainer.methods.protocols import CRITIC_VALUES, BatchCredit, Credit, CreditContext, TrajectoryCredit
from envgym.trainer.methods.scores import Quantity, ScoreRequest
from envgym.trainer.methods.tensors import check_rows
from envgym.trainer.methods.weights.base import TokenWeights


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


def _compute_nothing(
    rows: Sequence[TrainRow], quantities: Mapping[str, Collection[Quantity]]
) -> dict[tuple[str, Quantity], list[list[float]]]:
    raise InvalidInput.of(
        "scores", "be computed", dict(quantities), where="build_batch", do="pass a function as compute"
    )


def build_batch(
    groups: Sequence[Group],
    credit: Credit | BatchCredit,
    *,
    once: bool,
    origins: Set[Origin] = TRAINED,
    step: int = 0,
    scores: Sequence[ScoreRequest] = (),
    compute: ComputeScores = _compute_nothing,
    weights: Sequence[TokenWeights] = (),
) -> TrainingBatch:
    """Compute the scores of every valid episode, credit the episodes, and return rows.

    Args:
        groups: with the rewards that the credit reads.
        credit: assigns advantages.
        once: as for `train_rows`.
        origins: as for `train_rows`.
        step: the train step, from 0.
        scores: read by the credit, the weights and the losses.
        compute: computes them.
        weights: spread the advantages anew, one after the other.

    Raises: InvalidInput, UnknownName: as `score_episodes` and `reweighted`.
    """
    episodes = [episode for group in groups for episode in group.valid]
    episode_scores = score_episodes(episodes, scores, compute, origins=origins)
    along_paths = {
        name: [along_path(episode, of_rows[key_of(episode)]) for episode in episodes]
        for name, of_rows in episode_scores.items()
    }
    credits = assign_credits(credit, groups, CreditContext(step=step, scores=along_paths))
    rows = train_rows(credits, once=once, groups=groups, origins=origins)
    values = episode_scores.pop(CRITIC_VALUES, None)
    if values is not None:
        rows = _with_value_targets(rows, credits, values)
    if episode_scores:
        rows = with_scores(rows, credits, episode_scores)
    for token_weights in weights if rows else ():
        rows = reweighted(rows, token_weights, step=step)
    return TrainingBatch(credits, rows)


def with_scores(
    rows: Sequence[TrainRow], credits: Sequence[TrajectoryCredit], scores: Mapping[str, EpisodeScores]
) -> list[TrainRow]:
    """Join the rows of the credits with their scores."""
    keys = [
        (key_of(credit.trajectory), number)
        for credit in credits
        for number in range(len(trained_rows(credit.trajectory)))
    ]
    return [
        replace(row, scores={name: of_episodes[key][number] for name, of_episodes in scores.items()})
        for row, (key, number) in zip(rows, keys, strict=True)
    ]


def reweighted(rows: Sequence[TrainRow], weights: TokenWeights, *, step: int) -> list[TrainRow]:
    """Return the rows with the advantages that token weights give them.

    Raises: InvalidInput: advantages of another shape, or that are not finite.
    """
    whole = pad(rows, range(len(rows)), torch.device("cpu"))
    batch = LossBatch(
        logprobs_BT=whole.behavior_logprobs_BT,
        old_logprobs_BT=whole.behavior_logprobs_BT,
        advantages_BT=whole.advantages_BT,
        loss_mask_BT=whole.loss_mask_BT,
        behavior_logprobs_BT=whole.behavior_logprobs_BT,
        weights_BT=whole.weights_BT,
        ids=whole.ids,
        scores=whole.scores,
        step=step,
    )
    where = type(weights).__name__
    advantages_NT = weights(batch)
    check_rows(whole.loss_mask_BT, {"advantages": advantages_NT}, where=where)
    advantages_NT = torch.where(whole.loss_mask_BT, advantages_NT, 0.0)
    if not torch.isfinite(advantages_NT).all():
        do = "check the scores that the token weights read"
        raise InvalidInput.of("advantages", "be finite", "some that are not", where=where, do=do)
    return [
        replace(row, advantages=tuple(values[: len(row)]))
        for row, values in zip(rows, advantages_NT.tolist(), strict=True)
    ]


def _with_value_targets(
    rows: Sequence[TrainRow], credits: Sequence[TrajectoryCredit], values: EpisodeScores
) -> list[TrainRow]:
    values_of_rows = [of_row for credit in credits for of_row in values[key_of(credit.trajectory)]]
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
