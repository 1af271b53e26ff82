"""From credits to rows of numbers, and from rows to micro-batches: padded, or packed on shared prefixes.

What is a number per row and token is padded on the right; order and grouping are a function of the rows alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from envgym.core.trajectory import Row, share_counts
from envgym.trainer.batch.packs import Pack, build_pack, build_trie, cut
from envgym.trainer.batch.spread import token_advantages
from envgym.trainer.methods.protocols import TrajectoryCredit


class ValueTarget(NamedTuple):
    """The critic's value before a token, and its target."""

    value: float
    target: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """One token sequence as the learner reads it; every field has one entry a token."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    advantages: tuple[float, ...]
    behavior_logprobs: tuple[float, ...]
    """Nats, 0.0 where the mask is False."""
    weights: tuple[float, ...]
    """Share of this row in a token that several rows hold."""
    episode_share: float = 1.0
    """Share of this row in its episode's trained tokens, by their weights; below 1 where a context was rewritten."""
    value_targets: tuple[ValueTarget | None, ...] = ()
    """None where the critic learns nothing; () where there is no critic."""

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.token_ids)

    @property
    def trained_weight(self) -> float:
        """Sum of the weights of the tokens that train."""
        return math.fsum(weight for weight, trains in zip(self.weights, self.loss_mask, strict=True) if trains)

    @property
    def supervised(self) -> list[tuple[int, ValueTarget]]:
        """The positions at which the critic is supervised, with their value targets."""
        places = zip(
            range(len(self.value_targets)), self.value_targets, self.loss_mask[: len(self.value_targets)], strict=True
        )
        return [(place, value_target) for place, value_target, trains in places if value_target is not None and trains]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows padded to one length, on the learner's device."""

    rows: tuple[int, ...]
    """Which rows of the batch these are."""
    input_ids_BT: Int[Tensor, "B T"]
    attention_mask_BT: Bool[Tensor, "B T"]
    loss_mask_BT: Bool[Tensor, "B T"]
    advantages_BT: Float[Tensor, "B T"]
    behavior_logprobs_BT: Float[Tensor, "B T"]
    weights_BT: Float[Tensor, "B T"]
    episode_shares_B: Float[Tensor, " B"]
    pack: Pack | None = None
    """The same rows with each shared prefix once, which is what the model runs on; None: it runs on the rows."""

    @property
    def row_slice(self) -> tuple[Int[Tensor, " B"], slice]:
        """Where these rows stand in a tensor [N, T] of all rows."""
        return torch.tensor(self.rows, device=self.input_ids_BT.device), slice(0, self.input_ids_BT.shape[1])

    @property
    def num_tokens(self) -> int:
        """Tokens that the model computes."""
        return self.input_ids_BT.numel() if self.pack is None else len(self.pack)


def train_rows(credits: Sequence[TrajectoryCredit], *, once: bool) -> list[TrainRow]:
    """Lay the credits' trajectories out as rows; rows without a token that trains are left out.

    Args:
        credits: of valid episodes.
        once: a token that k rows share weighs 1/k in each; False: 1 in each.
    """
    pairs = [(number, row) for number, credit in enumerate(credits) for row in credit.trajectory.rows]
    pairs = [(number, row) for number, row in pairs if any(row.loss_mask)]
    counts = share_counts([row for _, row in pairs]) if once else None
    rows = [
        train_row(row, token_advantages(credits[number], row), None if counts is None else [1 / k for k in counts[at]])
        for at, (number, row) in enumerate(pairs)
    ]
    totals = [0.0] * len(credits)
    for (number, _), row in zip(pairs, rows, strict=True):
        totals[number] += row.trained_weight
    return [
        replace(row, episode_share=row.trained_weight / totals[number])
        for (number, _), row in zip(pairs, rows, strict=True)
    ]


def train_row(row: Row, advantages: Sequence[float], weights: Sequence[float] | None = None) -> TrainRow:
    """Join a row with its advantages; without weights every token weighs 1."""
    return TrainRow(
        token_ids=row.token_ids,
        loss_mask=(False, *row.loss_mask[1:]),  # the first token follows nothing, so nothing predicted it
        advantages=tuple(advantages),
        behavior_logprobs=row.behavior_logprobs,
        weights=(1.0,) * len(row) if weights is None else tuple(weights),
    )


def scored_row(token_ids: tuple[int, ...], *, first: int) -> TrainRow:
    """Return a row without advantages whose tokens are scored from the place `first` on."""
    count = len(token_ids)
    zeros = (0.0,) * count
    return TrainRow(
        token_ids=token_ids,
        loss_mask=tuple(place >= first for place in range(count)),
        advantages=zeros,
        behavior_logprobs=zeros,
        weights=(1.0,) * count,
    )


def padded_batches(
    rows: Sequence[TrainRow], chosen: Sequence[int], max_tokens: int, device: torch.device
) -> list[MicroBatch]:
    """Deal the chosen rows, longest first, into batches of at most `max_tokens` padded tokens (at least one row)."""
    batches: list[MicroBatch] = []
    open_rows: list[int] = []
    for number in sorted(chosen, key=lambda number: (-len(rows[number]), number)):
        if open_rows and (len(open_rows) + 1) * len(rows[open_rows[0]]) > max_tokens:
            batches.append(pad(rows, open_rows, device))
            open_rows = []
        open_rows.append(number)
    if open_rows:
        batches.append(pad(rows, open_rows, device))
    return batches


def packed_batches(
    rows: Sequence[TrainRow], chosen: Sequence[int], max_tokens: int, device: torch.device
) -> list[MicroBatch]:
    """Merge the chosen rows on their prefixes, in packs of at most `max_tokens` tokens (at least one row)."""
    token_ids = [row.token_ids for row in rows]
    loss_masks = [row.loss_mask for row in rows]
    trie = build_trie(token_ids, chosen)
    batches: list[MicroBatch] = []
    for run in cut(trie, max_tokens):
        pack = build_pack(token_ids, loss_masks, trie, run, device)
        batches.append(replace(pad(rows, trie.rows[run.start : run.stop], device), pack=pack))
    return batches


def pad(rows: Sequence[TrainRow], chosen: Sequence[int], device: torch.device) -> MicroBatch:
    """Pad rows on the right to the longest of them."""
    length = max(len(rows[number]) for number in chosen)
    shape = (len(chosen), length)
    input_ids_BT = torch.zeros(shape, dtype=torch.int64)
    attention_mask_BT = torch.zeros(shape, dtype=torch.bool)
    loss_mask_BT = torch.zeros(shape, dtype=torch.bool)
    advantages_BT, behavior_logprobs_BT, weights_BT = (torch.zeros(shape) for _ in range(3))
    for place, number in enumerate(chosen):
        row = rows[number]
        part = (place, slice(0, len(row)))
        input_ids_BT[part] = torch.tensor(row.token_ids)
        attention_mask_BT[part] = True
        loss_mask_BT[part] = torch.tensor(row.loss_mask)
        advantages_BT[part] = torch.tensor(row.advantages)
        behavior_logprobs_BT[part] = torch.tensor(row.behavior_logprobs)
        weights_BT[part] = torch.tensor(row.weights)
    return MicroBatch(
        rows=tuple(chosen),
        input_ids_BT=input_ids_BT.to(device),
        attention_mask_BT=attention_mask_BT.to(device),
        loss_mask_BT=loss_mask_BT.to(device),
        advantages_BT=advantages_BT.to(device),
        behavior_logprobs_BT=behavior_logprobs_BT.to(device),
        weights_BT=weights_BT.to(device),
        episode_shares_B=torch.tensor([rows[number].episode_share for number in chosen], device=device),
    )
