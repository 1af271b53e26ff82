"""Muon: matrices of the layers move as by `torch.optim.Muon`, everything else as by AdamW."""

import pytest
import torch

from envgym.trainer.learner.optimizers.base import build_optimizer
from envgym.trainer.learner.settings import OptimSettings
from tests.trainer.learner.optimizers.steady import STEPS, Weights, trained
from tests.trainer.learner.packing.forest import build


@pytest.mark.parametrize("rate, adjust", [("adamw", "match_rms_adamw"), ("spectral", "original")])
def test_matrices_move_as_by_torch_and_vectors_as_by_adamw(rate: str, adjust: str) -> None:
    settings = {"name": "muon", "rate": rate}
    model, _ = trained(torch.float32, build_optimizer, 1e-3, optimizer=settings, weight_decay=0.1)
    same = Weights(torch.float32)
    muon = torch.optim.Muon([same.matrix], lr=1e-3, weight_decay=0.1, momentum=0.95, adjust_lr_fn=adjust)
    adamw = torch.optim.AdamW([same.vector], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(STEPS):
        same.push(step)
        muon.step()
        adamw.step()
    torch.testing.assert_close(model.matrix, same.matrix, rtol=0, atol=1e-7)
    torch.testing.assert_close(model.vector, same.vector, rtol=0, atol=1e-6)


def test_an_update_is_about_as_large_as_one_of_adamw() -> None:
    start = Weights(torch.float32)
    sizes = []
    for name in ("muon", "adamw"):
        model, _ = trained(torch.float32, build_optimizer, 1e-4, optimizer={"name": name})
        sizes.append((model.matrix - start.matrix).norm().item())
    assert 0.1 < sizes[0] / sizes[1] < 2


@pytest.mark.parametrize("is_tied", [False, True])
def test_embeddings_and_output_layer_are_left_to_adamw(*, is_tied: bool) -> None:
    model = build("llama", dtype=torch.float32, tie_word_embeddings=is_tied)
    optimizer = build_optimizer(model, OptimSettings.model_validate({"optimizer": "muon"}))
    groups = {is_muon: set[int]() for is_muon in (False, True)}
    for group in optimizer.param_groups:
        groups[group["is_muon"]] |= {id(parameter) for parameter in group["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in groups[True]}
    layers = [name for name, parameter in model.named_parameters() if ".layers." in name and parameter.ndim == 2]
    assert names == set(layers)
    assert len(layers) == 14
    assert len(groups[False]) + len(groups[True]) == len(list(model.parameters()))
