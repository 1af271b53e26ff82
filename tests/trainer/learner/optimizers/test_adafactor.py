"""Adafactor in float32 is `torch.optim.Adafactor`; its state is in float32 whatever the weights are."""

import pytest
import torch

from envgym.trainer.learner.optimizers.base import build_optimizer
from tests.trainer.learner.optimizers.steady import STEPS, Weights, moved, trained


def test_weights_move_as_by_torch() -> None:
    model, _ = trained(torch.float32, build_optimizer, 1e-2, optimizer={"name": "adafactor"}, weight_decay=0.1)
    same = Weights(torch.float32)
    groups = [{"params": [same.matrix], "weight_decay": 0.1}, {"params": [same.vector], "weight_decay": 0.0}]
    optimizer = torch.optim.Adafactor(groups, lr=1e-2)
    for step in range(STEPS):
        same.push(step)
        optimizer.step()
    assert torch.equal(model.matrix, same.matrix)
    assert torch.equal(model.vector, same.vector)


def test_a_relative_rate_moves_weights_as_far_as_that_rate_times_their_size_by_adamw() -> None:
    start = [parameter.detach() for parameter in Weights(torch.float32).parameters()]
    size = start[0].square().mean().sqrt().item()  # 0.02
    distances = {}
    for name, rate in (("adamw", 1e-5), ("adafactor", 5e-4)):
        model, _ = trained(torch.float32, build_optimizer, rate, optimizer={"name": name})
        distances[name] = moved([model.matrix.detach()], start[:1])[0]
    assert 5e-4 * size == pytest.approx(1e-5, rel=0.05)
    assert 0.6 <= distances["adafactor"] / distances["adamw"] <= 1.4


def test_the_state_of_weights_in_bfloat16_is_in_float32() -> None:
    _, optimizer = trained(torch.bfloat16, build_optimizer, 1e-5, optimizer={"name": "adafactor"})
    kept = {name: value.dtype for state in optimizer.state.values() for name, value in state.items()}
    assert kept.pop("left_out_bits") is torch.bfloat16
    assert set(kept) == {"step", "row_var", "col_var", "variance"}
    assert set(kept.values()) == {torch.float32}
