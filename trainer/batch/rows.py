"""From credits to rows of numbers, and from rows to micro-batches: padded, or packed on shared prefixes.

What is a number per row and token is padded on the right; order and grouping are a function of the rows alone.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from envgym.core.segments import Origin
from envgym.core.trajectory import Group, Row, share_counts
from envgym.core.tree import Source
from envgym.core.turns import Scored
from envgym.errors import check_known
from envgym.trainer.batch.packs import Pack, build_pack, build_trie, cut
from envgym.trainer.batch.spread import token_advantages
from envgym.trainer.methods.protocols import TrajectoryCredit
from envgym.trainer.methods.row_ids import CPU, RowId, RowIds
from envgym.trainer.methods.tensors import to_device

TRAINED: Final = frozenset({Origin.POLICY})
"""Origins of the tokens that an objective reads, unless a term of it reads others."""


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
    id: RowId = field(default_factory=RowId)
    """Episode, group, task and source of the row; turn, node and origin of its tokens."""
    other_tokens: tuple[bool, ...] = ()
    """Tokens outside the loss mask that a term of the objective reads; () = none."""
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Named extra numbers per token, for losses to read."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def trained_weight(self) -> float:
        """Sum of the weights of the tokens that train."""
        return self.weight_of(self.loss_mask)

    def weight_of(self, mask: Sequence[bool]) -> float:
        """Return the sum of the weights of the tokens where a mask is True."""
        return math.fsum(weight for weight, holds in zip(self.weights, mask, strict=True) if holds)

    @property
    def scored_mask(self) -> tuple[bool, ...]:
        """The tokens whose log-probs the objective reads."""
        if not self.other_tokens:
            return self.loss_mask
        return tuple(either or other for either, other in zip(self.loss_mask, self.other_tokens, strict=True))

    def tokens_of(self, origins: Set[Origin]) -> tuple[bool, ...]:
        """Return the tokens of some origins, POLICY only as far as the loss mask goes; never the first token."""
        if origins == TRAINED:
            return self.loss_mask
        others = origins - TRAINED
        in_mask = self.loss_mask if origins & TRAINED else (False,) * len(self)
        triples = zip(in_mask, self.id.origins(len(self)), range(len(self)), strict=True)
        return tuple(trains or (origin in others and place > 0) for trains, origin, place in triples)

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
    rows_B: Int[Tensor, " B"]
    """The same on the device."""
    ids: RowIds
    """What they are of."""
    input_ids_BT: Int[Tensor, "B T"]
    attention_mask_BT: Bool[Tensor, "B T"]
    loss_mask_BT: Bool[Tensor, "B T"]
    scored_mask_BT: Bool[Tensor, "B T"]
    """The loss mask, and other tokens that a term of the objective reads."""
    scored_S: Int[Tensor, " S"]
    """Places of the scored tokens in the rows laid end to end, ascending; a row's first token is never scored."""
    advantages_BT: Float[Tensor, "B T"]
    behavior_logprobs_BT: Float[Tensor, "B T"]
    weights_BT: Float[Tensor, "B T"]
    episode_shares_B: Float[Tensor, " B"]
    scores: Mapping[str, Float[Tensor, "B T"]]
    """Named extra numbers per token; 0 in padding."""
    pack: Pack | None = None
    """The same rows with each shared prefix once, which is what the model runs on; None: it runs on the rows."""

    @property
    def row_slice(self) -> tuple[Int[Tensor, " B"], slice]:
        """Where these rows stand in a tensor [N, T] of all rows."""
        return self.rows_B, slice(0, self.input_ids_BT.shape[1])

    @property
    def num_tokens(self) -> int:
        """Tokens that the model computes."""
        return self.input_ids_BT.numel() if self.pack is None else len(self.pack)

    @property
    def state_mask_BT(self) -> Bool[Tensor, "B T"]:
        """The tokens that train, and in a row where none does those that are scored."""
        return torch.where(self.loss_mask_BT.any(dim=-1, keepdim=True), self.loss_mask_BT, self.scored_mask_BT)


def train_rows(
    credits: Sequence[TrajectoryCredit],
    *,
    once: bool,
    groups: Iterable[Group] = (),
    origins: Set[Origin] = TRAINED,
) -> list[TrainRow]:
    """Lay the credits' trajectories out as rows; rows without a token that trains are left out.

    Args:
        credits: of valid episodes.
        once: a token that k rows share weighs 1/k in each; False: 1 in each.
        groups: that the episodes are of; without them, those of one task are one group.
        origins: of the tokens that the objective reads.
    """
    pairs = [(number, row) for number, credit in enumerate(credits) for row in credit.trajectory.rows]
    pairs = [(number, row) for number, row in pairs if any(row.loss_mask)]
    counts = share_counts([row for _, row in pairs]) if once else None
    rows = [
        train_row(row, token_advantages(credits[number], row), None if counts is None else [1 / k for k in counts[at]])
        for at, (number, row) in enumerate(pairs)
    ]
    ids = episode_ids(credits, groups)
    totals = [0.0] * len(credits)
    for (number, _), row in zip(pairs, rows, strict=True):
        totals[number] += row.trained_weight
    rows = [
        replace(row, episode_share=row.trained_weight / totals[number], id=replace(ids[number], row=of_tree))
        for (number, of_tree), row in zip(pairs, rows, strict=True)
    ]
    return rows if origins <= TRAINED else [replace(row, other_tokens=row.tokens_of(origins - TRAINED)) for row in rows]


def episode_ids(credits: Sequence[TrajectoryCredit], groups: Iterable[Group]) -> list[RowId]:
    """Number the episodes, trees, groups and tasks of some credits, each from 0; episodes as they are given."""
    group_of_tree = {tree.id: f"group {group.key}" for group in groups for tree in group.trees}
    ids: list[RowId] = []
    numbers: dict[str, dict[str, int]] = {"tree": {}, "group": {}, "task": {}}

    def number_of(kind: str, key: str) -> int:
        return numbers[kind].setdefault(key, len(numbers[kind]))

    for episode, credit in enumerate(credits):
        tree, reward = credit.trajectory.tree, credit.trajectory.reward
        ids.append(
            RowId(
                episode=episode,
                tree=number_of("tree", tree.id),
                group=number_of("group", group_of_tree.get(tree.id, tree.task_key)),
                task=number_of("task", tree.task_key),
                source=tree.source,
                reward=reward.value if isinstance(reward, Scored) else 0.0,
                prompts=tree.prompts,
            )
        )
    return ids


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


def first_states(rows: Sequence[TrainRow], prompts: Sequence[str]) -> list[TrainRow]:
    """Return the contexts of every tree's first action under other prompts: a row per tree and prompt.

    Each ends with the tree's first sampled token, which is scored, so that the hidden state before it is computed, and
    does not train. A tree without the prompt gives none, nor does one of which only later contexts train.

    Raises: UnknownName: no tree of the policy has a prompt of this name.
    """
    states: dict[tuple[int, str], TrainRow] = {}
    names = {name for row in rows for name in row.id.prompts}
    for name in prompts if any(row.id.source is Source.POLICY for row in rows) else ():
        check_known("prompt of the trees", name, names, where="objective")
    for row, name in product(rows, prompts):
        of_tree, key = row.id.row, (row.id.tree, name)
        begins = of_tree is not None and of_tree.rewrite is None and any(row.loss_mask)
        if of_tree is None or not begins or name not in row.id.prompts or key in states:
            continue
        cut, end = of_tree.nodes.count(0), row.loss_mask.index(True) + 1
        token_ids = (*row.id.prompts[name], *row.token_ids[cut:end])
        scored = scored_row(token_ids, first=len(token_ids) - 1)
        states[key] = replace(
            scored,
            loss_mask=(False,) * len(scored),
            other_tokens=scored.loss_mask,
            scores=dict.fromkeys(row.scores, (0.0,) * len(scored)),
            id=replace(row.id, row=None, prompt=name),
        )
    return list(states.values())


def padded_batches(
    rows: Sequence[TrainRow], indices: Sequence[int], max_tokens: int, device: torch.device
) -> list[MicroBatch]:
    """Deal the chosen rows, longest first, into batches of at most `max_tokens` padded tokens (at least one row)."""
    batches: list[MicroBatch] = []
    open_rows: list[int] = []
    for number in sorted(indices, key=lambda number: (-len(rows[number]), number)):
        if open_rows and (len(open_rows) + 1) * len(rows[open_rows[0]]) > max_tokens:
            batches.append(pad(rows, open_rows, device))
            open_rows = []
        open_rows.append(number)
    if open_rows:
        batches.append(pad(rows, open_rows, device))
    return batches


def pack_multiple(device: torch.device) -> int:
    """Return the number that the padded lengths of packs are a multiple of.

    A GPU's kernels work on tiles, are compiled and tuned for lengths, and its memory is cached in blocks by size; on a
    CPU padding would only cost time. FlexAttention reads masks in squares of 128, and is compiled once for all packs of
    two squares or more, but apart for a single one.
    """
    return 256 if device.type == "cuda" else 1


def packed_batches(
    rows: Sequence[TrainRow], indices: Sequence[int], max_tokens: int, device: torch.device
) -> list[MicroBatch]:
    """Merge the chosen rows on their prefixes, in packs of at most `max_tokens` tokens (at least one row).

    On a GPU they are then padded: see `pack_multiple`.
    """
    token_ids = [row.token_ids for row in rows]
    scored_masks = [row.scored_mask for row in rows]
    trie = build_trie(token_ids, indices)
    batches: list[MicroBatch] = []
    for run in cut(trie, max_tokens):
        pack = build_pack(token_ids, scored_masks, trie, run, CPU, multiple=pack_multiple(device))
        batch = _padded(rows, trie.rows[run.start : run.stop], device)
        batches.append(to_device(replace(batch, pack=pack), device))
    return batches


def pad(rows: Sequence[TrainRow], indices: Sequence[int], device: torch.device) -> MicroBatch:
    """Pad rows on the right to the longest of them."""
    return to_device(_padded(rows, indices, device), device)


def _padded(rows: Sequence[TrainRow], indices: Sequence[int], device: torch.device) -> MicroBatch:
    length = max(len(rows[number]) for number in indices)
    shape = (len(indices), length)
    input_ids_BT = torch.zeros(shape, dtype=torch.int64)
    attention_mask_BT = torch.zeros(shape, dtype=torch.bool)
    loss_mask_BT = torch.zeros(shape, dtype=torch.bool)
    scored_mask_BT = torch.zeros_like(loss_mask_BT) if any(rows[n].other_tokens for n in indices) else loss_mask_BT
    scores = {name: torch.zeros(shape) for number in indices for name in rows[number].scores}
    advantages_BT, behavior_logprobs_BT, weights_BT = (torch.zeros(shape) for _ in range(3))
    for place, number in enumerate(indices):
        row = rows[number]
        part = (place, slice(0, len(row)))
        input_ids_BT[part] = torch.tensor(row.token_ids)
        attention_mask_BT[part] = True
        loss_mask_BT[part] = torch.tensor(row.loss_mask)
        advantages_BT[part] = torch.tensor(row.advantages)
        behavior_logprobs_BT[part] = torch.tensor(row.behavior_logprobs)
        weights_BT[part] = torch.tensor(row.weights)
        if scored_mask_BT is not loss_mask_BT:
            scored_mask_BT[part] = torch.tensor(row.scored_mask)
        for name, values in row.scores.items():
            scores[name][part] = torch.tensor(values)
    follows_BT = scored_mask_BT.clone()
    follows_BT[:, 0] = False  # the first token follows nothing, so nothing predicted it
    return MicroBatch(
        rows=tuple(indices),
        rows_B=torch.tensor(list(indices), dtype=torch.int64),
        ids=RowIds(ids=[rows[number].id for number in indices], length=length, device=device),
        input_ids_BT=input_ids_BT,
        attention_mask_BT=attention_mask_BT,
        loss_mask_BT=loss_mask_BT,
        scored_mask_BT=scored_mask_BT,
        scored_S=follows_BT.flatten().nonzero()[:, 0],
        advantages_BT=advantages_BT,
        behavior_logprobs_BT=behavior_logprobs_BT,
        weights_BT=weights_BT,
        episode_shares_B=torch.tensor([rows[number].episode_share for number in indices]),
        scores=scores,
    )
