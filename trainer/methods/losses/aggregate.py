"""The one way from losses per token to a scalar, with an explicit denominator.

The numerator is a sum over the rows at hand, the denominator belongs to the whole batch. So the scalars of
micro-batches add up to the scalar of the batch, as do their gradients, however the rows were dealt out.
Data-parallel ranks likewise: add the ranks' denominators, aggregate on each, *sum* (not average) the gradients.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from envgym.config.plugins import PluginKind
from envgym.config.settings import Settings
from envgym.errors import InvalidInput
from envgym.trainer.methods.row_ids import RowIds
from envgym.trainer.methods.tensors import check_rows
from envgym.trainer.tables import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominator:
    """What the sums over a whole batch are divided by; the denominators of disjoint parts add up."""

    tokens: float
    """Σ w m: trained tokens, each with its row weight."""
    sequences: float
    """Σ share: episodes with a trained token. The rows of an episode whose context was rewritten add up to one."""
    groups: Mapping[int, float] = field(default_factory=dict)
    """Group -> its part of `tokens`."""

    def __add__(self, other: "Denominator") -> "Denominator":
        groups = Counter(self.groups)
        groups.update(other.groups)
        return Denominator(tokens=self.tokens + other.tokens, sequences=self.sequences + other.sequences, groups=groups)


@runtime_checkable
class Aggregation(Protocol):
    """How the losses of a batch become one number; w: row weight, m: loss mask, l: loss, b: row, t: token.

    A sequence is an episode: one row, or several where its context was rewritten.
    """

    def __call__(
        self,
        losses_BT: Float[Tensor, "B T"],
        loss_mask_BT: Bool[Tensor, "B T"],
        row_weights_BT: Float[Tensor, "B T"] | None = None,
        shares_B: Float[Tensor, " B"] | None = None,
        *,
        denominator: Denominator,
        ids: RowIds | None = None,
    ) -> Float[Tensor, ""]:
        """Reduce the losses of these rows to their share of the batch's scalar.

        Args:
            losses_BT: [B, T] float; values under the mask are ignored, NaN included.
            loss_mask_BT: [B, T] bool, True = trains.
            row_weights_BT: [B, T] float >= 0, the share of this row in a token it has in common with others (1/k for a
                token trained once by k rows); None = 1 everywhere.
            shares_B: [B] the share of each row in its episode's Σ w m; None = every row is a whole episode.
            denominator: of the *whole* batch, of which these may be some rows.
            ids: what the rows are of; None = nothing is known of them.

        Returns:
            A scalar. Rows without a trained token add 0; a batch without one gives 0, with gradient 0.
        """
        ...


AGGREGATION: Final[PluginKind[Aggregation]] = KINDS["aggregation"]


class SumOverDivisor(Settings, ABC):
    """The base of ours: a sum over all rows, divided once."""

    needs_groups: ClassVar[bool] = False
    """Whether it reads the trained tokens of a row's group."""

    def __call__(
        self,
        losses_BT: Float[Tensor, "B T"],
        loss_mask_BT: Bool[Tensor, "B T"],
        row_weights_BT: Float[Tensor, "B T"] | None = None,
        shares_B: Float[Tensor, " B"] | None = None,
        *,
        denominator: Denominator,
        ids: RowIds | None = None,
    ) -> Float[Tensor, ""]:
        """Return these rows' share of the batch's scalar."""
        check_rows(loss_mask_BT, {"losses": losses_BT}, where="an aggregation")
        weights_BT = _token_weights(loss_mask_BT, row_weights_BT)
        row_sums_B = (torch.where(loss_mask_BT, losses_BT, 0.0) * weights_BT).sum(dim=-1)
        shares_B = row_sums_B.new_ones(len(row_sums_B)) if shares_B is None else shares_B
        divisor = self.divisor(denominator)
        if self.needs_groups and ids is None:
            name, do = type(self).__name__, "pass the rows' ids"
            raise InvalidInput.of("ids", "name the group of each row", None, where=name, do=do)
        tokens_B = row_sums_B.new_empty(0)
        if self.needs_groups and ids is not None:  # of a group that is not read, 0 of 1
            tokens_B = row_sums_B.new_tensor([denominator.groups.get(row_id.group, 1.0) for row_id in ids.ids])
        values_B = self.row_values(row_sums_B, weights_BT, shares_B, tokens_B)
        return values_B.sum() * (1.0 / divisor if divisor > 0 else 0.0)

    def row_values(
        self,
        row_sums_B: Float[Tensor, " B"],
        weights_BT: Float[Tensor, "B T"],
        shares_B: Float[Tensor, " B"],
        group_tokens_B: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """Return the contribution of each row: its weighted sum Σ_t w m l."""
        del weights_BT, shares_B, group_tokens_B
        return row_sums_B

    @abstractmethod
    def divisor(self, denominator: Denominator) -> float:
        """Return the number that the batch's sum is divided by."""


class TokenMean(SumOverDivisor):
    """Mean over tokens: Σ_bt w m l / Σ_bt w m. Every token counts the same, so long rows weigh more.

    Source: 2503.14476 (DAPO).
    """

    def divisor(self, denominator: Denominator) -> float:
        return denominator.tokens


class TokenSum(SumOverDivisor):
    """Sum over tokens: Σ_bt w m l."""

    def divisor(self, denominator: Denominator) -> float:
        return 1.0


class SeqMeanTokenSum(SumOverDivisor):
    """Mean over sequences of the sum over tokens: Σ_bt w m l / #sequences."""

    def divisor(self, denominator: Denominator) -> float:
        return denominator.sequences


class SeqMeanTokenMean(SeqMeanTokenSum):
    """Mean over sequences of the mean over tokens, Σ w m l / Σ w m of each / #sequences: all count the same.

    Source: 2402.03300 (GRPO).
    """

    def row_values(
        self,
        row_sums_B: Float[Tensor, " B"],
        weights_BT: Float[Tensor, "B T"],
        shares_B: Float[Tensor, " B"],
        group_tokens_B: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """Return the contribution of each row to the mean over its sequence's tokens."""
        del group_tokens_B
        tokens_B = weights_BT.sum(dim=-1)
        return row_sums_B * shares_B / torch.where(tokens_B > 0, tokens_B, 1.0)


class PromptMean(SumOverDivisor):
    """Mean over groups of the mean over tokens: Σ_g (Σ w m l of g / Σ w m of g) / #groups: all prompts count the same.

    Source: 2510.13786 (ScaleRL).
    """

    needs_groups: ClassVar[bool] = True

    def divisor(self, denominator: Denominator) -> float:
        """Return the number of groups with a trained token."""
        return len(denominator.groups)

    def row_values(
        self,
        row_sums_B: Float[Tensor, " B"],
        weights_BT: Float[Tensor, "B T"],
        shares_B: Float[Tensor, " B"],
        group_tokens_B: Float[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        """Return the contribution of each row to the mean over its group's tokens."""
        del weights_BT, shares_B
        return row_sums_B / group_tokens_B


class SeqMeanTokenSumNorm(SumOverDivisor):
    """Mean over sequences of the sum over tokens, over a constant: Σ_bt w m l / (#sequences · max_tokens).

    Source: 2503.20783 (Dr. GRPO).
    """

    max_tokens: int = Field(ge=1)
    """The constant; set it to the most tokens that an episode may sample."""

    def divisor(self, denominator: Denominator) -> float:
        return denominator.sequences * self.max_tokens


def _token_weights(
    loss_mask_BT: Bool[Tensor, "B T"], row_weights_BT: Float[Tensor, "B T"] | None
) -> Float[Tensor, "B T"]:
    """Return the row weights, 0 where the mask is False."""
    if row_weights_BT is None:
        return loss_mask_BT.float()
    check_rows(loss_mask_BT, {"row_weights": row_weights_BT}, where="an aggregation")
    return torch.where(loss_mask_BT, row_weights_BT, 0.0)
