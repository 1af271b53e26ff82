"""The one way from losses per token to a scalar, with an explicit denominator.

The numerator is a sum over the rows at hand, the denominator belongs to the whole batch. So the scalars of
micro-batches add up to the scalar of the batch, as do their gradients, however the rows were dealt out.
Data-parallel ranks likewise: add the ranks' denominators, aggregate on each, *sum* (not average) the gradients.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envgym.errors import InvalidInput, sentence
from envgym.trainer.methods.tensors import check_rows


class Aggregation(StrEnum):
    """How the losses of a batch become one number; w: row weight, m: loss mask, l: loss, b: row, t: token."""

    TOKEN_MEAN = "token-mean"
    """Σ_bt w m l / Σ_bt w m. Every token counts the same, so long rows weigh more. Source: 2503.14476 (DAPO)."""
    TOKEN_SUM = "token-sum"
    """Σ_bt w m l."""
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    """Σ_bt w m l / #sequences."""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    """Σ_b (Σ_t w m l / Σ_t w m) / #sequences. Every row counts the same. Source: 2402.03300 (GRPO)."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq-mean-token-sum-norm"
    """Σ_bt w m l / (#sequences · max_tokens). Source: 2503.20783 (Dr. GRPO)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominator:
    """What the sums over a whole batch are divided by; the denominators of disjoint parts add up."""

    tokens: float
    """Σ w m: trained tokens, each with its row weight."""
    sequences: float
    """Rows with at least one trained token. A caller that wants to count otherwise (episodes instead of the rows
    they were split into, or every sampled row) sets its own number."""
    max_tokens: int | None = None
    """The constant of `seq-mean-token-sum-norm`, usually the longest episode allowed, in tokens."""

    def __add__(self, other: "Denominator") -> "Denominator":
        """Return the denominator of both parts together."""
        if self.max_tokens != other.max_tokens:
            got = f"{self.max_tokens} and {other.max_tokens}"
            do = "give every part of a batch the same constant"
            raise InvalidInput(sentence("max_tokens", "agree", got, where="adding two Denominators", do=do))
        return Denominator(
            tokens=self.tokens + other.tokens,
            sequences=self.sequences + other.sequences,
            max_tokens=self.max_tokens,
        )


def denominator_of(
    loss_mask_BT: Bool[Tensor, "B T"],
    row_weights_BT: Float[Tensor, "B T"] | None = None,
    *,
    max_tokens: int | None = None,
) -> Denominator:
    """Count what a batch is divided by.

    A token trains where the mask is True and its row weight is not 0; a row without such a token is no sequence.

    Args:
        loss_mask_BT: [B, T] bool, True = trains.
        row_weights_BT: [B, T] float >= 0, the share of this row in a token it has in common with others (1/k for a
            token trained once by k rows); None = 1 everywhere.
        max_tokens: the constant of `seq-mean-token-sum-norm`, at least 1.
    """
    if max_tokens is not None and max_tokens < 1:
        do = "give the longest episode allowed, in tokens"
        raise InvalidInput(sentence("max_tokens", "be at least 1", max_tokens, where="denominator_of", do=do))
    weights_BT = _token_weights(loss_mask_BT, row_weights_BT)
    return Denominator(
        tokens=weights_BT.sum(dtype=torch.float64).item(),
        sequences=float((weights_BT > 0).any(dim=-1).sum().item()),
        max_tokens=max_tokens,
    )


def aggregate(
    losses_BT: Float[Tensor, "B T"],
    loss_mask_BT: Bool[Tensor, "B T"],
    row_weights_BT: Float[Tensor, "B T"] | None = None,
    *,
    mode: Aggregation,
    denominator: Denominator,
) -> Float[Tensor, ""]:
    """Reduce the losses of these rows to their share of the batch's scalar, by the formula of `mode`.

    Args:
        losses_BT: [B, T] float; values under the mask are ignored, NaN included.
        loss_mask_BT: [B, T] bool, True = trains.
        row_weights_BT: as for `denominator_of`.
        mode: which formula.
        denominator: of the *whole* batch, of which these may be some rows.

    Returns:
        A scalar. Rows without a trained token add 0; a batch without one gives 0, with gradient 0.

    Raises:
        InvalidInput: `seq-mean-token-sum-norm` without `max_tokens`.
    """
    check_rows(loss_mask_BT, {"losses": losses_BT}, where="aggregate")
    weights_BT = _token_weights(loss_mask_BT, row_weights_BT)
    row_sums_B = (torch.where(loss_mask_BT, losses_BT, 0.0) * weights_BT).sum(dim=-1)
    if mode is Aggregation.SEQ_MEAN_TOKEN_MEAN:
        tokens_B = weights_BT.sum(dim=-1)
        row_sums_B = row_sums_B / torch.where(tokens_B > 0, tokens_B, 1.0)
    divisor = _divisor(mode, denominator)
    return row_sums_B.sum() * (1.0 / divisor if divisor > 0 else 0.0)


def _token_weights(
    loss_mask_BT: Bool[Tensor, "B T"], row_weights_BT: Float[Tensor, "B T"] | None
) -> Float[Tensor, "B T"]:
    """Return the row weights, 0 where the mask is False."""
    if row_weights_BT is None:
        return loss_mask_BT.float()
    check_rows(loss_mask_BT, {"row_weights": row_weights_BT}, where="aggregate")
    return torch.where(loss_mask_BT, row_weights_BT, 0.0)


def _divisor(mode: Aggregation, denominator: Denominator) -> float:
    """Return the number that the batch's sum is divided by."""
    match mode:
        case Aggregation.TOKEN_MEAN:
            return denominator.tokens
        case Aggregation.TOKEN_SUM:
            return 1.0
        case Aggregation.SEQ_MEAN_TOKEN_SUM | Aggregation.SEQ_MEAN_TOKEN_MEAN:
            return denominator.sequences
        case Aggregation.SEQ_MEAN_TOKEN_SUM_NORM:
            if denominator.max_tokens is None:
                do = "pass max_tokens to denominator_of"
                raise InvalidInput(sentence("max_tokens", f"be set for {mode}", None, where="aggregate", do=do))
            return denominator.sequences * denominator.max_tokens
