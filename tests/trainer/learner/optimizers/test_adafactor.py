"""Adafactor in float32 is `torch.optim.Adafactor`; its state is in float32 whatever the weights are."""

import torch

from envgym.trainer.learner.optimizers.base import build_optimizer
from tests.trainer.learner.optimizers.steady import STEPS, Weights, trained


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


def test_the_state_of_weights_in_bfloat16_is_in_float32() -> None:
    _, optimizer = trained(torch.bfloat16, build_optimizer, 1e-5, optimizer={"name": "adafactor"})
    kept = {name: value.dtype for state in optimizer.state.values() for name, value in state.items()}
    assert kept.pop("left_out_bits") is torch.bfloat16
    assert set(kept) == {"step", "row_var", "col_var", "variance"}
    assert set(kept.values()) == {torch.float32}
