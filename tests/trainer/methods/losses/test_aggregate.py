"""Aggregation: the values of each mode, and that parts of a batch add up to the batch."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envgym.config.plugins import Choice
from envgym.errors import InvalidInput
from envgym.trainer.methods.losses.aggregate import (
    AGGREGATION,
    Aggregation,
    Denominator,
    PromptMean,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
)
from envgym.trainer.methods.row_ids import RowId, RowIds
from tests.support.denominators import denominator_of

LOSSES = torch.tensor([[1.0, 2.0, 9.0], [3.0, 4.0, 5.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()
MAX_TOKENS = 3
NORM = SeqMeanTokenSumNorm(max_tokens=MAX_TOKENS)
MODES: list[Aggregation] = [TokenMean(), TokenSum(), SeqMeanTokenSum(), SeqMeanTokenMean(), NORM]


def _scalar(losses: Tensor, mask: Tensor, weights: Tensor | None, mode: Aggregation) -> Tensor:
    return mode(losses, mask, weights, denominator=denominator_of(mask, weights))


def _batch(seed: int, rows: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw losses, a mask (some rows empty) and row weights 1/k in float64."""
    generator = torch.Generator().manual_seed(seed)
    losses = torch.randn(rows, tokens, dtype=torch.float64, generator=generator)
    mask = torch.rand(rows, tokens, generator=generator) < 0.6
    mask &= torch.rand(rows, 1, generator=generator) < 0.8
    weights = 1.0 / torch.randint(1, 5, (rows, tokens), generator=generator).double()
    return losses, mask, weights


@pytest.mark.parametrize(
    "mode, expected",
    [
        (TokenMean(), 3.0),  # (1 + 2 + 3 + 4 + 5) / 5
        (TokenSum(), 15.0),
        (SeqMeanTokenSum(), 7.5),  # (3 + 12) / 2
        (SeqMeanTokenMean(), 2.75),  # (1.5 + 4) / 2
        (NORM, 2.5),  # 15 / (2 * 3)
    ],
)
def test_each_mode_gives_its_golden_value(mode: Aggregation, expected: float) -> None:
    assert _scalar(LOSSES, MASK, None, mode).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "mode, expected",
    [
        # Weights: the two rows share their first token, so it counts 1/2 in each.
        (TokenMean(), 13 / 4),  # (0.5 + 2 + 1.5 + 4 + 5) / (0.5 + 1 + 0.5 + 1 + 1)
        (TokenSum(), 13.0),
        (SeqMeanTokenSum(), 6.5),  # 13 / 2
        (SeqMeanTokenMean(), (2.5 / 1.5 + 10.5 / 2.5) / 2),
        (NORM, 13 / 6),  # 13 / (2 * 3)
    ],
)
def test_row_weights_count_in_numerator_and_token_denominator(mode: Aggregation, expected: float) -> None:
    weights = torch.tensor([[0.5, 1.0, 1.0], [0.5, 1.0, 1.0]])
    assert _scalar(LOSSES, MASK, weights, mode).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 6),
    cut=st.integers(0, 6),
    weighted=st.booleans(),
    shared=st.booleans(),
)
def test_micro_batches_add_up_to_the_batch_in_value_and_gradient(
    mode: Aggregation, seed: int, rows: int, cut: int, weighted: bool, shared: bool
) -> None:
    losses, mask, drawn = _batch(seed, rows, 5)
    weights = drawn if weighted else None
    shares = drawn[:, 0] if shared else None
    denominator = denominator_of(mask, weights, shares)
    whole = losses.clone().requires_grad_()
    value = mode(whole, mask, weights, shares, denominator=denominator)
    value.backward()
    parts = losses.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for part in (slice(None, cut), slice(cut, None)):
        of_rows = [None if given is None else given[part] for given in (weights, shares)]
        loss = mode(parts[part], mask[part], *of_rows, denominator=denominator)
        loss.backward()
        total += loss.detach()
    torch.testing.assert_close(total, value.detach(), rtol=1e-12, atol=1e-12)
    assert parts.grad is not None
    torch.testing.assert_close(parts.grad, whole.grad, rtol=0, atol=0)


@given(seed=st.integers(0, 10_000), cut=st.integers(0, 5))
def test_denominators_of_parts_add_up_to_the_batch(seed: int, cut: int) -> None:
    _, mask, weights = _batch(seed, 5, 4)
    shares = weights[:, 0]
    first, rest = (denominator_of(mask[part], weights[part], shares[part]) for part in (slice(cut), slice(cut, None)))
    parts, whole = first + rest, denominator_of(mask, weights, shares)
    assert parts.tokens == pytest.approx(whole.tokens, abs=1e-9)
    assert parts.sequences == pytest.approx(whole.sequences, abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
@given(seed=st.integers(0, 10_000), padding=st.integers(1, 4))
def test_padding_and_row_order_change_nothing(mode: Aggregation, seed: int, padding: int) -> None:
    losses, mask, weights = _batch(seed, 4, 5)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    pad = (0, padding)
    padded = [
        torch.nn.functional.pad(losses[order], pad, value=torch.nan),
        torch.nn.functional.pad(mask[order], pad, value=False),
        torch.nn.functional.pad(weights[order], pad, value=torch.nan),
    ]
    expected = _scalar(losses, mask, weights, mode)
    torch.testing.assert_close(_scalar(padded[0], padded[1], padded[2], mode), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_masked_nan_reaches_neither_value_nor_gradient(mode: Aggregation) -> None:
    losses = LOSSES.clone()
    losses[0, 2] = torch.nan
    losses.requires_grad_()
    value = _scalar(losses, MASK, None, mode)
    value.backward()
    assert value.item() == pytest.approx(_scalar(LOSSES, MASK, None, mode).item())
    assert losses.grad is not None
    assert losses.grad[0, 2].item() == 0.0
    assert bool(losses.grad.isfinite().all())


@pytest.mark.parametrize("mode", MODES)
def test_a_row_without_trained_tokens_does_not_count(mode: Aggregation) -> None:
    losses = torch.cat([LOSSES, torch.full((1, 3), 7.0)])
    mask = torch.cat([MASK, torch.zeros(1, 3).bool()])
    assert _scalar(losses, mask, None, mode).item() == pytest.approx(_scalar(LOSSES, MASK, None, mode).item())


def test_a_row_of_weight_zero_does_not_count() -> None:
    weights = torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])  # the 1 of the first row is masked
    assert denominator_of(MASK, weights) == Denominator(tokens=3.0, sequences=1.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [0, 2])
def test_a_batch_without_trained_tokens_gives_zero_with_zero_gradient(mode: Aggregation, rows: int) -> None:
    losses = torch.full((rows, 3), torch.nan, requires_grad=True)
    value = _scalar(losses, torch.zeros(rows, 3).bool(), None, mode)
    value.backward()
    assert value.item() == 0.0
    assert losses.grad is not None
    assert losses.grad.tolist() == [[0.0] * 3] * rows


@pytest.mark.parametrize(
    "mode, expected",
    [
        (TokenMean(), 3.0),  # (1 + 2 + 3 + 4 + 5) / 5, as in rows of their own
        (TokenSum(), 15.0),
        (SeqMeanTokenSum(), 15.0),  # 15 / 1
        (SeqMeanTokenMean(), 3.0),  # 15 / 5 tokens of the episode, / 1
        (NORM, 5.0),  # 15 / (1 * 3)
    ],
)
def test_an_episode_in_two_rows_counts_once(mode: Aggregation, expected: float) -> None:
    shares = torch.tensor([2 / 5, 3 / 5])
    denominator = denominator_of(MASK, None, shares)
    assert denominator.sequences == pytest.approx(1.0)
    assert mode(LOSSES, MASK, None, shares, denominator=denominator).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({}, "max_tokens must be set, got nothing"),
        ({"max_tokens": 0}, "max_tokens must be greater than or equal to 1, got 0"),
    ],
)
def test_constant_must_be_given(settings: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        AGGREGATION.build(Choice.model_validate({"name": "seq-mean-token-sum-norm", **settings}))


def test_prompt_mean_weighs_every_group_alike() -> None:
    # Group 0 has the rows [1] and [2, 2, 5], group 1 the row [4, 0]: (10 / 4 + 4 / 2) / 2.
    losses = torch.tensor([[1.0, 9.0, 9.0], [2.0, 2.0, 5.0], [4.0, 0.0, 9.0]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0]]).bool()
    denominator = Denominator(tokens=6.0, sequences=3.0, groups={0: 4.0, 1: 2.0})
    ids = RowIds(ids=[RowId(group=0), RowId(group=0), RowId(group=1)], length=3)
    assert PromptMean()(losses, mask, denominator=denominator, ids=ids).item() == pytest.approx(2.25)
    # the same losses by token and by row: 14 / 6, and (1 + 3 + 2) / 3
    assert TokenMean()(losses, mask, denominator=denominator).item() == pytest.approx(2.333333, abs=1e-6)
    assert SeqMeanTokenMean()(losses, mask, denominator=denominator).item() == pytest.approx(2.0)
    parts = [
        PromptMean()(
            losses[n : n + 1], mask[n : n + 1], denominator=denominator, ids=replace(ids, ids=ids.ids[n : n + 1])
        )
        for n in range(3)
    ]
    assert sum(part.item() for part in parts) == pytest.approx(2.25)
    with pytest.raises(InvalidInput, match="ids must name the group of each row"):
        PromptMean()(losses, mask, denominator=denominator)
    assert (denominator + Denominator(tokens=1.0, sequences=1.0, groups={1: 1.0})).groups == {0: 4.0, 1: 3.0}
