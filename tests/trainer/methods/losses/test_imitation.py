"""Losses that imitate: the likelihood, CHORD's weights, Prefix-RFT's prefixes."""

from math import log

import pytest
import torch
from torch import Tensor

from envgym.trainer.methods.losses import LossBatch, NegativeLogLikelihood, PolicyLoss, TokenLoss
from envgym.trainer.methods.losses.chord import Chord
from envgym.trainer.methods.losses.prefix_rft import PrefixRft
from envgym.trainer.methods.row_ids import RowId, RowIds


def _batch(logprobs: Tensor, **others: Tensor | RowIds) -> LossBatch:
    ones = torch.ones_like(logprobs)
    given = {"old_logprobs_BT": logprobs.detach(), "advantages_BT": ones, "loss_mask_BT": ones.bool(), **others}
    return LossBatch(logprobs_BT=logprobs, **given)  # type: ignore[arg-type]  # fields by name


def _mean_and_gradient(loss: PolicyLoss, chances: list[float]) -> tuple[float, list[float]]:
    logprobs = torch.tensor([chances], dtype=torch.float64).log().requires_grad_()
    result: TokenLoss = loss(_batch(logprobs))
    mean = result.losses_BT.mean()
    mean.backward()
    assert logprobs.grad is not None
    return mean.item(), logprobs.grad[0].tolist()


@pytest.mark.parametrize(
    "weight, expected, gradient",
    [
        ("phi", 0.130001, [-0.03, -0.083333, -0.03]),
        ("probability", 0.223886, [-0.3, -0.166667, -0.033333]),
        ("none", 1.033698, [-1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_chord_weighs_each_token_as_published(weight: str, expected: float, gradient: list[float]) -> None:
    mean, slopes = _mean_and_gradient(Chord.model_validate({"weight": weight}), [0.9, 0.5, 0.1])
    assert mean == pytest.approx(expected, abs=1e-6)
    assert slopes == pytest.approx(gradient, abs=1e-6)


def test_chord_leaves_tokens_above_the_cutoff_alone() -> None:
    mean, slopes = _mean_and_gradient(Chord(weight="none", cutoff=0.6), [0.9, 0.5, 0.1])
    assert mean == pytest.approx(-(log(0.6) + log(0.5) + log(0.1)) / 3)
    assert slopes == pytest.approx([0.0, -1 / 3, -1 / 3])


def test_chord_reads_no_token_that_does_not_train() -> None:
    logprobs = torch.tensor([[log(0.5), float("nan"), -1.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, False]])
    losses_BT = Chord(cutoff=0.5)(_batch(logprobs, loss_mask_BT=mask)).losses_BT
    assert losses_BT.tolist() == [[pytest.approx(0.25 * log(2)), 0.0, 0.0]]
    losses_BT.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[pytest.approx(-0.25), 0.0, 0.0]]


def test_without_a_weight_chord_is_the_likelihood() -> None:
    plain = _mean_and_gradient(NegativeLogLikelihood(), [0.7, 0.2])
    assert _mean_and_gradient(Chord(weight="none"), [0.7, 0.2]) == plain


def test_only_episodes_of_the_least_reward_are_imitated() -> None:
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    ids = RowIds(ids=[RowId(reward=1.0), RowId(reward=0.4)], length=2)
    assert NegativeLogLikelihood(min_reward=0.5)(_batch(logprobs, ids=ids)).losses_BT.tolist() == [[1, 2], [0, 0]]
    assert NegativeLogLikelihood(min_reward=0.4)(_batch(logprobs, ids=ids)).losses_BT.tolist() == [[1, 2], [3, 4]]


PUBLISHED_ENTROPIES = [0.1, 0.9, 0.4, 0.2, 0.05, 1.3, 0.3, 0.6, 0.0, 0.8]


def test_prefix_tokens_of_the_highest_entropy_train_with_the_advantage_of_what_follows() -> None:
    # Ten prefix tokens, then two sampled ones with A = -2; a fifth of the prefix trains: tokens 1 and 5.
    logprobs = torch.full((1, 12), -1.0, dtype=torch.float64)
    logprobs[0, 1] += log(1.5)
    logprobs.requires_grad_()
    batch = _batch(
        logprobs,
        old_logprobs_BT=torch.full((1, 12), -1.0, dtype=torch.float64),
        advantages_BT=torch.tensor([[0.0] * 10 + [-2.0, -2.0]], dtype=torch.float64),
        loss_mask_BT=torch.tensor([[True] * 10 + [False, False]]),
        entropies_BT=torch.tensor([[*PUBLISHED_ENTROPIES, 9.0, 9.0]], dtype=torch.float64),
    )
    result = PrefixRft(share=0.2)(batch)
    expected = torch.zeros(1, 12, dtype=torch.float64)
    expected[0, 1], expected[0, 5] = 3.0, 2.0
    torch.testing.assert_close(result.losses_BT, expected)
    result.losses_BT.sum().backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, expected)  # the slope of 2 ρ by log π is 2 ρ
    assert result.sums["kept"].item() == 2


def test_of_prefix_tokens_of_equal_entropy_the_first_train() -> None:
    """Of many, so that a sort that mixes equal numbers is seen to mix them."""
    ones = torch.ones(1, 5000)
    batch = _batch(-ones, advantages_BT=-ones, entropies_BT=ones)
    assert PrefixRft(share=0.1)(batch).losses_BT.nonzero()[:, 1].tolist() == list(range(500))


def test_each_prefix_has_the_mean_advantage_of_its_own_row() -> None:
    # Rows: one prefix token, then two sampled with A = 3; one, then one with A = -1; one, and nothing was sampled.
    mask = torch.tensor([[True, False, False], [True, False, False], [True, False, False]])
    old = torch.full((3, 3), -2.0)
    batch = LossBatch(
        logprobs_BT=old.clone().requires_grad_(),
        old_logprobs_BT=old,
        advantages_BT=torch.tensor([[0.0, 3.0, 3.0], [0.0, -1.0, 0.0], [0.0, 0.0, 0.0]]),
        loss_mask_BT=mask,
        entropies_BT=torch.ones(3, 3),
    )
    losses_BT = PrefixRft(share=1.0)(batch).losses_BT
    assert losses_BT.tolist() == [[-3.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    losses_BT.sum().backward()
    assert batch.logprobs_BT.grad is not None
    assert batch.logprobs_BT.grad.tolist() == losses_BT.tolist()  # of A times the ratio, which is 1
