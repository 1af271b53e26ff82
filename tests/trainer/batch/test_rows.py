"""From credits to padded micro-batches: every token once, nothing of another row, nothing in the padding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.utils._python_dispatch import TorchDispatchMode

from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.trainer.batch.rows import MicroBatch, TrainRow, packed_batches, pad, padded_batches, train_rows
from envgym.trainer.methods.credit.outcome import episode_credits
from tests.support.example_trees import (
    context_rewrite,
    injected_hint,
    invalid_branch,
    outcome_tree,
    shared_prefix_both_signs,
)

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(min_value=1, max_value=12), min_size=1, max_size=12)


def rows_of(tree: Tree, *advantages: float, once: bool = False) -> list[TrainRow]:
    valid = [episode for episode in trajectories(tree) if episode.is_valid]
    return train_rows(episode_credits(valid, list(advantages)), once=once)


def row(length: int, number: int = 0) -> TrainRow:
    return TrainRow(
        token_ids=tuple(100 * number + place + 1 for place in range(length)),
        loss_mask=tuple(place % 2 == 1 for place in range(length)),
        advantages=tuple(float(number + place) for place in range(length)),
        behavior_logprobs=tuple(-float(place) for place in range(length)),
        weights=(0.5,) * length,
    )


def unpadded(batch: MicroBatch) -> dict[int, TrainRow]:
    """Read the rows back from a micro-batch, by the attention mask alone."""
    found: dict[int, TrainRow] = {}
    for place, number in enumerate(batch.rows):
        size = int(batch.attention_mask_BT[place].sum())
        assert batch.attention_mask_BT[place, :size].all(), "padding is on the right"
        found[number] = TrainRow(
            token_ids=tuple(batch.input_ids_BT[place, :size].tolist()),
            loss_mask=tuple(batch.loss_mask_BT[place, :size].tolist()),
            advantages=tuple(batch.advantages_BT[place, :size].tolist()),
            behavior_logprobs=tuple(batch.behavior_logprobs_BT[place, :size].tolist()),
            weights=tuple(batch.weights_BT[place, :size].tolist()),
        )
    return found


def test_sampled_tokens_train_with_the_advantage_of_their_episode() -> None:
    # prompt 1 2 3, glue 4, sampled 10 11 | glue 4 | sampled 12 (paid 1) or 13 (paid 0)
    right, wrong = rows_of(shared_prefix_both_signs(), 0.5, -0.5)
    assert right.token_ids == (1, 2, 3, 4, 10, 11, 4, 12)
    assert right.loss_mask == (False, False, False, False, True, True, False, True)
    assert list(right.advantages) == [0, 0, 0, 0, 0.5, 0.5, 0, 0.5]
    assert list(right.behavior_logprobs) == [0, 0, 0, 0, -0.10, -0.11, 0, -0.12]
    assert right.weights == (1.0,) * 8
    assert wrong.token_ids[-1] == 13
    assert list(wrong.advantages) == [0, 0, 0, 0, -0.5, -0.5, 0, -0.5]


@pytest.mark.parametrize("once", [False, True])
def test_rows_of_a_rewritten_episode_share_it_by_their_trained_tokens(once: bool) -> None:
    sizes = [sum(row.loss_mask) for row in rows_of(context_rewrite(), 1.0, once=once)]
    assert len(sizes) > 1
    shares = [row.episode_share for row in rows_of(context_rewrite(), 1.0, once=once)]
    assert shares == pytest.approx([size / sum(sizes) for size in sizes])
    assert [row.episode_share for row in rows_of(shared_prefix_both_signs(), 0.5, -0.5, once=once)] == [1.0, 1.0]


def test_shared_token_weighs_its_share_once_and_a_whole_per_path() -> None:
    tree = shared_prefix_both_signs()
    once = rows_of(tree, 0.5, -0.5, once=True)
    trained = [[w for w, trains in zip(row.weights, row.loss_mask, strict=True) if trains] for row in once]
    assert trained == [[0.5, 0.5, 1.0], [0.5, 0.5, 1.0]]  # 10 and 11 are in both rows
    assert sum(map(sum, trained)) == 4  # the tokens that were sampled: 10 11 12 13


def test_rewrite_gives_two_rows_and_no_token_trains_twice() -> None:
    first, second = rows_of(context_rewrite(), 1.0)
    assert (first.token_ids, second.token_ids) == ((1, 2, 3, 4, 10, 11), (1, 10, 11, 30, 4, 12, 13))
    assert [t for t, trains in zip(first.token_ids, first.loss_mask, strict=True) if trains] == [10, 11]
    assert [t for t, trains in zip(second.token_ids, second.loss_mask, strict=True) if trains] == [12, 13]


def test_injected_token_never_trains() -> None:
    (only,) = rows_of(injected_hint(), 1.0)
    assert [t for t, trains in zip(only.token_ids, only.loss_mask, strict=True) if trains] == [10, 11]
    assert only.token_ids == (1, 2, 3, 4, 10, 90, 91, 11)


def test_invalid_episode_gives_no_row() -> None:
    assert [row.token_ids[-1] for row in rows_of(invalid_branch(), 0.5, -0.5)] == [10, 11]


def test_first_token_of_a_row_never_trains() -> None:
    (found,) = rows_of(outcome_tree("t", 1.0), 1.0)
    assert found.loss_mask[0] is False


@given(lengths=LENGTHS, max_tokens=st.integers(min_value=1, max_value=40))
def test_every_row_is_in_one_micro_batch_unchanged(lengths: Sequence[int], max_tokens: int) -> None:
    rows = [row(length, number) for number, length in enumerate(lengths)]
    batches = padded_batches(rows, range(len(rows)), max_tokens, CPU)
    found = [item for batch in batches for item in unpadded(batch).items()]
    assert sorted(number for number, _ in found) == list(range(len(rows)))
    assert dict(found) == dict(enumerate(rows))


@given(lengths=LENGTHS, max_tokens=st.integers(min_value=1, max_value=40))
def test_micro_batch_keeps_the_limit_unless_one_row_alone_exceeds_it(lengths: Sequence[int], max_tokens: int) -> None:
    rows = [row(length) for length in lengths]
    for batch in padded_batches(rows, range(len(rows)), max_tokens, CPU):
        assert batch.input_ids_BT.numel() <= max_tokens or len(batch.rows) == 1


@given(lengths=LENGTHS, max_tokens=st.integers(min_value=1, max_value=40))
def test_largest_micro_batch_comes_first_so_that_memory_peaks_at_once(lengths: Sequence[int], max_tokens: int) -> None:
    rows = [row(length) for length in lengths]
    widths = [batch.input_ids_BT.shape[1] for batch in padded_batches(rows, range(len(rows)), max_tokens, CPU)]
    assert widths == sorted(widths, reverse=True)


def test_only_the_chosen_rows_are_dealt() -> None:
    rows = [row(length) for length in (5, 3, 4)]
    assert [batch.rows for batch in padded_batches(rows, [0, 2], 100, CPU)] == [(0, 2)]


def test_padding_holds_nothing() -> None:
    batch = pad([row(2, 1), row(4, 2)], [0, 1], CPU)
    assert batch.input_ids_BT.tolist() == [[101, 102, 0, 0], [201, 202, 203, 204]]
    assert batch.attention_mask_BT.tolist() == [[True, True, False, False], [True] * 4]
    padding = ~batch.attention_mask_BT
    for values in (batch.loss_mask_BT, batch.advantages_BT, batch.behavior_logprobs_BT, batch.weights_BT):
        assert not values[padding].any()


def test_no_row_makes_no_micro_batch() -> None:
    assert padded_batches([], [], 8, CPU) == []


@pytest.mark.parametrize("max_tokens,sizes", [(12, [2, 1]), (4, [1, 1, 1]), (100, [3])])
def test_rows_are_dealt_longest_first(max_tokens: int, sizes: list[int]) -> None:
    # lengths 6 5 2: two rows padded to 6 are 12 tokens, three are 18
    batches = padded_batches([row(2), row(6), row(5)], range(3), max_tokens, CPU)
    assert [len(batch.rows) for batch in batches] == sizes
    assert batches[0].rows[0] == 1


@pytest.mark.parametrize("batches_of", [packed_batches, padded_batches])
def test_a_micro_batch_travels_to_its_device_in_one_copy(
    batches_of: Callable[[Sequence[TrainRow], Sequence[int], int, torch.device], list[MicroBatch]],
) -> None:
    rows = [replace(row(length, number), scores={"hint": (0.5,) * length}) for number, length in enumerate((5, 3, 4))]
    on_cpu = batches_of(rows, range(3), 100, CPU)[0]
    with Copies() as copies:
        (batch,) = batches_of(rows, range(3), 100, torch.device("meta"))
        assert copies.number == 1
        assert batch.ids.episodes_B.device.type == "meta"
    assert copies.number == 2  # what a loss reads of the rows' origin comes when it is read
    ours, theirs = ([*batch.scores.values(), *tensors_of(batch), *tensors_of(batch.pack)] for batch in (batch, on_cpu))
    assert len(ours) == (17 if batch.pack is not None else 11)
    assert all(tensor.device.type == "meta" for tensor in ours)
    assert [(tensor.shape, tensor.dtype) for tensor in ours] == [(tensor.shape, tensor.dtype) for tensor in theirs]


def tensors_of(record: object) -> list[torch.Tensor]:
    values = [getattr(record, name) for name in sorted(getattr(record, "__slots__", ()))]
    return [value for value in values if isinstance(value, torch.Tensor)]


class Copies(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.number = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.number += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_scored_places_are_those_of_the_mask_without_first_tokens() -> None:
    rows = [replace(row(3), loss_mask=(True, False, True)), replace(row(2), loss_mask=(True, True))]
    assert pad(rows, [0, 1], CPU).scored_S.tolist() == [2, 4]  # of [[1, 0, 1], [1, 1, padding]]
