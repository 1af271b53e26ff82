"""The entropy bonus."""

from dataclasses import replace

import pytest
import torch

from envgym.errors import InvalidInput
from envgym.trainer.methods.losses import Entropy, LossBatch
from tests.support.losses import batch_of


def _batch(entropies: torch.Tensor | None) -> LossBatch:
    return replace(batch_of([[0.0] * 3], 0.0, [0.0], [[1, 0, 1]]), entropies_BT=entropies)


def test_the_bonus_is_minus_the_entropy_of_trained_tokens() -> None:
    entropies = torch.tensor([[0.5, torch.nan, 2.0]], requires_grad=True)
    losses = Entropy()(_batch(entropies)).losses_BT
    losses.sum().backward()
    assert losses.tolist() == [[-0.5, 0.0, -2.0]]
    assert entropies.grad is not None
    assert entropies.grad.tolist() == [[-1.0, 0.0, -1.0]]


def test_without_entropies_it_is_refused() -> None:
    with pytest.raises(InvalidInput, match="entropies must be given"):
        Entropy()(_batch(None))
