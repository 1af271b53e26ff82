"""The contrastive term: by hand, as a triplet loss, its gradient, its symmetries, and where nothing can be compared."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import triplet_margin_with_distance_loss

from envgym.core.tree import Rewrite
from envgym.errors import InvalidInput
from envgym.trainer.methods.losses.base import LossBatch
from envgym.trainer.methods.losses.contrastive import Contrastive
from envgym.trainer.methods.row_ids import RowId
from tests.support.differences import central_difference
from tests.support.losses import batch_of, row_of_turns

SAMPLED = [RowId(tree=0, task=0), RowId(tree=1, task=1)]
IN_XML = [replace(row_id, prompt="xml") for row_id in SAMPLED]
XML = Contrastive(prompts=("xml",))


def batch(states: Sequence[Sequence[float]] | Tensor, ids: Sequence[RowId]) -> LossBatch:
    """Return rows of two tokens, of which those of a prompt train none."""
    zeros, mask = [[0.0, 0.0]] * len(ids), [[int(row_id.prompt is None)] * 2 for row_id in ids]
    states_BD = torch.as_tensor(states, dtype=torch.float64)
    return replace(batch_of(zeros, 0.0, [0.0] * len(ids), mask, ids), states_BD=states_BD)


def losses(loss: Contrastive, states: Sequence[Sequence[float]] | Tensor, ids: Sequence[RowId]) -> Tensor:
    losses_BT = loss(batch(states, ids)).losses_BT
    assert torch.equal(losses_BT[:, 0], losses_BT[:, 1])
    return losses_BT[:, 0]


def random_states(seed: int, rows: int) -> Tensor:
    return torch.randn(rows, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def several(num_tasks: int, *prompts: str) -> list[RowId]:
    """Return two episodes for each task, and each tree's states under the prompts."""
    trees = [RowId(tree=tree, task=tree // 2) for tree in range(2 * num_tasks)]
    return [replace(row_id, prompt=prompt) for prompt in (None, *prompts) for row_id in trees]


def test_loss_by_hand() -> None:
    """z: east and west as sampled; in XML north and northeast.

    Episode 0: |z - own|² = 2, |z - other|² = 2 - √2, so 2 - (2 - √2) + 1 = 1 + √2. Episode 1: 2 + √2 - 2 + 1, the same.
    """
    states = [[3.0, 0.0], [-2.0, 0.0], [0.0, 0.5], [1.0, 1.0]]
    root = 2**0.5
    assert losses(XML, states, SAMPLED + IN_XML).tolist() == pytest.approx([1 + root, 1 + root, 0, 0])
    sums = XML(batch(states, SAMPLED + IN_XML)).sums
    assert sums["distance_same"].item() == pytest.approx(2 * (2 + 2 + root))  # of four tokens
    assert sums["distance_other"].item() == pytest.approx(2 * (2 - root + 2))
    # states that lie with their own, and by more than the margin from others, are left alone
    assert losses(XML, [[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]], SAMPLED + IN_XML).tolist() == [0.0] * 4


def test_mean_is_over_prompts_and_over_the_states_of_other_tasks() -> None:
    """The anchor and its own in XML lie east, those of two other tasks north and west: max(0, 0 - 2 + 3), and 0 - 4.

    Its own in prose lies north: max(0, 2 - 2 + 3), and 2 - 4 + 3. So the mean of (1 + 0) / 2 and (3 + 1) / 2.
    """
    ids = [RowId(tree=number, task=number) for number in range(3)]
    both = [replace(row_id, prompt=name) for name in ("xml", "prose") for row_id in ids]
    east, north, west = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]
    states = [east, north, west, *(east, north, west), *(north, north, west)]
    loss = Contrastive(prompts=("xml", "prose"), margin=3.0)
    assert losses(loss, states, [*ids, *both])[0].item() == pytest.approx(1.25)


@given(seed=st.integers(0, 10_000))
def test_with_one_other_task_it_is_the_triplet_loss_of_squared_distances(seed: int) -> None:
    states = random_states(seed, 4)
    unit = states / states.norm(dim=1, keepdim=True)
    expected = triplet_margin_with_distance_loss(
        unit[:2],
        unit[2:],
        unit[[3, 2]],
        distance_function=lambda one, other: (one - other).square().sum(-1),
        margin=0.7,
        reduction="none",
    )
    found = losses(Contrastive(prompts=("xml",), margin=0.7), states, SAMPLED + IN_XML)
    torch.testing.assert_close(found[:2], expected)


@given(seed=st.integers(0, 10_000))
def test_gradient_equals_central_differences(seed: int) -> None:
    ids = several(2, "xml", "prose")
    given_batch, loss = batch(random_states(seed, len(ids)), ids), Contrastive(prompts=("xml", "prose"), margin=0.5)
    states = given_batch.states.clone().requires_grad_()
    loss(replace(given_batch, states_BD=states)).losses_BT.sum().backward()
    assert states.grad is not None
    direction = random_states(seed + 1, len(ids))
    slope = central_difference(
        lambda by: loss(replace(given_batch, states_BD=states.detach() + by * direction)).losses_BT.sum()
    )
    assert (states.grad * direction).sum().item() == pytest.approx(slope.item(), rel=1e-5, abs=1e-6)


@given(seed=st.integers(0, 10_000))
def test_lengths_rotations_and_the_order_of_rows_change_nothing(seed: int) -> None:
    ids, loss = several(3, "xml"), XML
    states = random_states(seed, len(ids))
    expected = losses(loss, states, ids)
    assert bool((expected[:6] >= 0).all())
    assert bool((expected[:6] <= 4 + loss.margin).all())
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.rand(len(ids), 1, dtype=torch.float64, generator=generator) + 0.1
    rotation = torch.linalg.qr(random_states(seed + 1, 5)).Q
    torch.testing.assert_close(losses(loss, (lengths * states) @ rotation, ids), expected)
    order = torch.randperm(len(ids), generator=generator)
    shuffled = losses(loss, states[order], [ids[place] for place in order.tolist()])
    torch.testing.assert_close(shuffled, expected[order])


def test_only_what_can_be_compared_is() -> None:
    states = [[3.0, 0.0], [-2.0, 0.0], [0.0, 0.5], [1.0, 1.0]]
    assert losses(XML, states, SAMPLED + IN_XML)[:2].all()
    one_task = [replace(row_id, task=0) for row_id in SAMPLED + IN_XML]
    rewritten = replace(row_of_turns([0, 0]), rewrite=Rewrite.TURNS_DROPPED)
    later = [replace(SAMPLED[0], row=rewritten), *SAMPLED[1:], *IN_XML]
    in_prose = [replace(row_id, prompt="prose") for row_id in SAMPLED]
    assert losses(XML, states, one_task).tolist() == [0.0] * 4, "no other task"
    assert losses(XML, states, later).tolist()[0] == 0.0, "a rewritten context is not the first state"
    assert losses(XML, states, SAMPLED + in_prose).tolist() == [0.0] * 4, "no state in XML"
    twice = Contrastive(prompts=("xml", "prose"))
    torch.testing.assert_close(losses(twice, states, SAMPLED + IN_XML), losses(XML, states, SAMPLED + IN_XML))


def test_states_must_be_there_and_be_those_of_the_rows() -> None:
    good = batch(random_states(0, 4), SAMPLED + IN_XML)
    with pytest.raises(InvalidInput, match="states must be given, got None"):
        XML(replace(good, states_BD=None))
    with pytest.raises(InvalidInput, match=r"states must be \[B, D\] of 4 rows, got \[3, 5\]"):
        replace(good, states_BD=random_states(0, 3))
