"""Masked reductions."""

from math import inf, nan

import torch

from envgym.trainer.methods.tensors import masked_max, masked_min, masked_sum

VALUES = torch.tensor([[1.0, nan], [-2.0, inf]])
MASK = torch.tensor([[True, False], [True, False]])


def test_reductions_see_trained_tokens_only() -> None:
    assert masked_sum(VALUES, MASK).item() == -1.0
    assert masked_min(VALUES, MASK).item() == -2.0
    assert masked_max(VALUES, MASK).item() == 1.0


def test_reductions_of_nothing_are_their_identities() -> None:
    for values in (VALUES, torch.zeros(0, 2), torch.zeros(2, 0)):
        nothing = torch.zeros_like(values).bool()
        assert masked_sum(values, nothing).item() == 0.0
        assert masked_min(values, nothing).item() == inf
        assert masked_max(values, nothing).item() == -inf


def test_an_unmasked_nan_stays_visible() -> None:
    everything = torch.ones(2, 2).bool()
    for reduce in (masked_sum, masked_min, masked_max):
        assert reduce(VALUES, everything).isnan().item()
