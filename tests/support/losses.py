"""Losses on batches made by hand."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from envgym.core.trajectory import Row
from envgym.trainer.methods.losses import Aggregation, LossBatch, LossStats, PolicyLoss, TokenLoss, TokenMean
from envgym.trainer.methods.row_ids import RowId, RowIds
from tests.support.denominators import denominator_of


def stats_of(result: TokenLoss) -> LossStats:
    """Return what a loss that clips has counted."""
    assert result.stats is not None
    return result.stats


def batch_of(
    logprobs: Sequence[Sequence[float]],
    old: Sequence[Sequence[float]] | float,
    advantages: Sequence[float | Sequence[float]],
    mask: Sequence[Sequence[int]] | None = None,
    ids: Sequence[RowId] = (),
) -> LossBatch:
    """Return a float64 batch; an old log-prob or an advantage may be one number for all tokens, or all of a row."""
    logprobs_BT = torch.tensor(logprobs, dtype=torch.float64)
    rows = [row if isinstance(row, Sequence) else [row] * logprobs_BT.shape[1] for row in advantages]
    return LossBatch(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=torch.tensor(old, dtype=torch.float64).expand_as(logprobs_BT),
        advantages_BT=torch.tensor(rows, dtype=torch.float64),
        loss_mask_BT=torch.ones_like(logprobs_BT).bool() if mask is None else torch.tensor(mask).bool(),
        ids=RowIds(ids=ids, length=logprobs_BT.shape[1]),
    )


def golden_batch() -> LossBatch:
    """Return the batch of the published losses: some tokens beyond usual clips, on both sides."""
    new = [[-0.5, -1.2, -1.0], [-1.4, -0.9, -3.0]]
    return batch_of(new, -1.0, [1.0, -0.5], [[1, 1, 0], [1, 1, 1]])


def row_of_turns(turns: Sequence[int]) -> Row:
    """Return a row of which nothing but its tokens' turns is known."""
    count = len(turns)
    zeros = (0,) * count
    return Row(
        tree_id="t",
        leaf=1,
        rewrite=None,
        segments=(),
        token_ids=zeros,
        loss_mask=(True,) * count,
        behavior_logprobs=(0.0,) * count,
        nodes=zeros,
        turns=tuple(turns),
    )


def evaluate(
    loss: PolicyLoss, batch: LossBatch, aggregation: Aggregation | None = None
) -> tuple[float, list[list[float]], TokenLoss]:
    """Return the aggregated loss (default: the mean over tokens), its gradient by the log-probs, and what was returned.

    The groups of the batch's rows, where they are known, weigh by their trained tokens.
    """
    aggregation, mask = aggregation or TokenMean(), batch.loss_mask_BT
    logprobs = batch.logprobs_BT.clone().requires_grad_()
    result = loss(replace(batch, logprobs_BT=logprobs))
    groups = [row_id.group for row_id in batch.ids.ids]
    tokens = {group: sum(int(mask[n].sum()) for n, of in enumerate(groups) if of == group) for group in groups}
    denominator = replace(denominator_of(mask), groups={group: float(count) for group, count in tokens.items()})
    value = aggregation(result.losses_BT, mask, denominator=denominator, ids=batch.ids)
    value.backward()
    assert logprobs.grad is not None
    return value.item(), logprobs.grad.tolist(), result


def gradient_of(loss: PolicyLoss, batch: LossBatch) -> Tensor:
    logprobs = batch.logprobs_BT.clone().requires_grad_()
    loss(replace(batch, logprobs_BT=logprobs)).losses_BT.sum().backward()
    assert logprobs.grad is not None
    return logprobs.grad
