"""The entropy bonus."""

import torch

from envgym.trainer.methods.losses.base import entropy_bonus


def test_the_bonus_is_minus_the_entropy_of_trained_tokens() -> None:
    entropies = torch.tensor([[0.5, torch.nan, 2.0]], requires_grad=True)
    losses = entropy_bonus(entropies, torch.tensor([[True, False, True]]))
    losses.sum().backward()
    assert losses.tolist() == [[-0.5, 0.0, -2.0]]
    assert entropies.grad is not None
    assert entropies.grad.tolist() == [[-1.0, 0.0, -1.0]]
