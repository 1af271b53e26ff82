"""Memory: what a block holds at its peak, and what training a model holds between micro-batches."""

import pytest
import torch
from torch import nn

from envgym.trainer.workflows.dry_run import peak_memory, state_memory

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.parametrize("size", [64, 128])
def test_peak_is_what_the_block_held_at_most(size: int) -> None:
    with peak_memory(CPU) as peak:
        held = torch.ones(size * MIB // 4)
        del held
        again = torch.ones(size * MIB // 8)
    assert again.numel() > 0
    assert size * MIB * 0.95 < peak.num_bytes < size * MIB * 1.2


def test_peak_of_earlier_work_does_not_count() -> None:
    before = torch.ones(128 * MIB // 4)
    del before
    with peak_memory(CPU) as peak:
        small = torch.ones(32 * MIB // 4)
    assert small.numel() > 0
    assert peak.num_bytes < 64 * MIB


def test_state_is_weights_gradients_and_two_moments() -> None:
    model = nn.Linear(10, 6)  # 66 numbers of 4 bytes
    memory = state_memory(model, reference=False)
    assert (memory.weights, memory.gradients, memory.optimizer, memory.total) == (264, 264, 528, 1056)


def test_frozen_weights_have_neither_gradient_nor_moments() -> None:
    model = nn.Sequential(nn.Linear(10, 6), nn.Linear(6, 1))
    model[0].requires_grad_(False)
    memory = state_memory(model, reference=False)
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * 73, 4 * 7, 8 * 7)


def test_reference_is_a_second_set_of_weights() -> None:
    model = nn.Linear(10, 6, dtype=torch.bfloat16)
    assert state_memory(model, reference=True).weights == 2 * state_memory(model, reference=False).weights == 2 * 132
