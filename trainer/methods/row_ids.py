"""What rows are of: the episode, group and task of each, and the turn, segment, node and origin of each token.

Tensors are made when they are read, so that a loss that reads none pays nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from envgym.core.segments import Origin
from envgym.core.trajectory import Row
from envgym.core.tree import Source
from envgym.trainer.methods.tensors import to_device

ORIGINS: Final = tuple(Origin)
"""An origin's place here is its number in a tensor."""
SOURCES: Final = tuple(Source)
"""A source's place here is its number in a tensor."""
SAMPLED: Final = frozenset({Source.POLICY, Source.REPLAY})
"""Sources whose rows the policy sampled, now or earlier: their log-probs at that time are known."""
CPU: Final = torch.device("cpu")
_NODES_PER_TREE: Final = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class RowId:
    """What one row is of. Numbers count from 0 within a train step."""

    episode: int = 0
    """An episode has several rows where its context was rewritten."""
    tree: int = 0
    group: int = 0
    task: int = 0
    """Several groups may be of one task."""
    source: Source = Source.POLICY
    reward: float = 0.0
    """Of the episode, after shaping."""
    row: Row | None = None
    """The row of the tree, where there is one."""
    prompts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """`Tree.prompts`: the tree's first context rendered in other ways."""
    prompt: str | None = None
    """Name of the prompt that the row begins with in place of its first context; nothing of it trains. None: it begins
    as it was sampled."""

    def origins(self, length: int) -> list[Origin]:
        """Return the origin of each of the row's `length` tokens; all POLICY where no row of a tree is known."""
        if self.row is None:
            return [Origin.POLICY] * length
        return [segment.origin for segment in self.row.segments for _ in segment.token_ids]


@dataclass(frozen=True, kw_only=True)
class RowIds:
    """What the rows of a batch are of; -1 stands in padding, and where no row of a tree is known."""

    ids: Sequence[RowId] = ()
    length: int = 0
    """T, the length that the rows are padded to."""
    device: torch.device = CPU

    @cached_property
    def episodes_B(self) -> Int[Tensor, " B"]:
        """The episode of each row."""
        return self._numbers([row_id.episode for row_id in self.ids])

    @cached_property
    def trees_B(self) -> Int[Tensor, " B"]:
        """The tree of each row."""
        return self._numbers([row_id.tree for row_id in self.ids])

    @cached_property
    def groups_B(self) -> Int[Tensor, " B"]:
        """The group of each row."""
        return self._numbers([row_id.group for row_id in self.ids])

    @cached_property
    def tasks_B(self) -> Int[Tensor, " B"]:
        """The task of each row."""
        return self._numbers([row_id.task for row_id in self.ids])

    @cached_property
    def sources_B(self) -> Int[Tensor, " B"]:
        """The source of each row, as its place in `SOURCES`."""
        return self._numbers([SOURCES.index(row_id.source) for row_id in self.ids])

    @cached_property
    def rewards_B(self) -> Float[Tensor, " B"]:
        """The reward of each row's episode, after shaping."""
        return to_device(torch.tensor([row_id.reward for row_id in self.ids]), self.device)

    @cached_property
    def turns_BT(self) -> Int[Tensor, "B T"]:
        """The turn of each token in its episode; -1 before the first action."""
        return self._of_tokens(lambda row_id, row: row.turns)

    @cached_property
    def segments_BT(self) -> Int[Tensor, "B T"]:
        """The segment of each token, counted in its row."""
        return self._of_tokens(
            lambda row_id, row: [n for n, segment in enumerate(row.segments) for _ in range(len(segment))]
        )

    @cached_property
    def nodes_BT(self) -> Int[Tensor, "B T"]:
        """The node of the tree that holds each token: equal numbers in two rows are one node, which both share."""
        return self._of_tokens(lambda row_id, row: [row_id.tree * _NODES_PER_TREE + node for node in row.nodes])

    @cached_property
    def origins_BT(self) -> Int[Tensor, "B T"]:
        """The origin of each token, as its place in `ORIGINS`."""
        return self._of_tokens(lambda row_id, row: [ORIGINS.index(origin) for origin in row_id.origins(len(row))])

    def _numbers(self, values: Sequence[int]) -> Int[Tensor, " B"]:
        return to_device(torch.tensor(values, dtype=torch.int64), self.device)

    def _of_tokens(self, read: Callable[[RowId, Row], Sequence[int]]) -> Int[Tensor, "B T"]:
        numbers_BT = torch.full((len(self.ids), self.length), -1, dtype=torch.int64)
        for place, row_id in enumerate(self.ids):
            if row_id.row is not None:
                numbers_BT[place, : len(row_id.row)] = torch.tensor(read(row_id, row_id.row), dtype=torch.int64)
        return to_device(numbers_BT, self.device)
