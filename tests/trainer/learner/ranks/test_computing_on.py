"""A model on the CPU computes on a rank's device with one decoder layer there at a time, and stays as it was."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from envgym.trainer.learner.causal_lm import causal_lm
from envgym.trainer.learner.packing.support import can_pack
from envgym.trainer.learner.ranks import sharded
from envgym.trainer.learner.ranks.sharded import RankedForwardPass, computing_on, shard_frozen
from envgym.trainer.learner.settings import OptimSettings
from tests.trainer.learner.packing.forest import build

CPU = torch.device("cpu")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a move be a copy: torch has no second device everywhere."""

    def moved(tensors: Any, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
        homes = [(tensor, tensor.data) for tensor in tensors]
        for tensor, home in homes:
            tensor.data = home.clone()
        return homes

    monkeypatch.setattr(sharded, "_moved", moved)


def _places(module: nn.Module) -> list[int]:
    return [tensor.data_ptr() for tensor in [*module.parameters(), *module.buffers()]]


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("fails", [False, True])
def test_one_layer_is_on_the_device_at_a_time_and_all_are_put_back(fails: bool) -> None:
    model: Any = build()
    layers: list[Any] = list(causal_lm(model).get_decoder().layers)
    homes, homes_of_layers = _places(model), [_places(layer) for layer in layers]
    embedding = model.get_input_embeddings().weight
    embedding_home = embedding.data_ptr()
    away: list[list[int]] = []

    def note(*_: object) -> None:
        away.append([n for n, layer in enumerate(layers) if _places(layer) != homes_of_layers[n]])
        assert embedding.data_ptr() != embedding_home
        if fails and len(away) == 2:
            raise KeyError("a layer that fails")

    for layer in layers:  # a module inside of the layer, as the layer's own hooks come first
        layer.mlp.register_forward_pre_hook(note)
    if fails:
        with pytest.raises(KeyError), computing_on(model, CPU):
            model(input_ids=torch.tensor([[0, 1, 2]]))
        assert away == [[0], [1]]
    else:
        with computing_on(model, CPU):
            model(input_ids=torch.tensor([[0, 1, 2]]))
        assert away == [[number] for number in range(len(layers))]
    assert _places(model) == homes


def test_packs_are_tried_on_the_device_of_the_rank_before_the_model_is_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def moved(tensors: Any, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
        events.append(device.type)
        return []

    def pack(model: nn.Module) -> bool:
        events.append("packs")
        return True

    monkeypatch.setattr(sharded, "_moved", moved)
    monkeypatch.setattr(sharded, "shard", lambda *_, **__: events.append("shard"))
    monkeypatch.setattr("envgym.trainer.learner.forward.can_pack", pack)

    monkeypatch.setattr(sharded, "can_pack", pack)
    group: Any = SimpleNamespace(mesh=None, device=torch.device("meta"))
    RankedForwardPass(build(), OptimSettings(), device=group.device, group=group)
    assert events == ["meta", "packs", "shard"]
    events.clear()
    shard_frozen(build(), group)
    assert events == ["meta", "packs", "shard"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available")
def test_packs_of_a_model_on_the_cpu_are_proved_on_the_gpu() -> None:
    model: Any = build()
    homes = _places(model)
    devices: set[str] = set()
    causal_lm(model).get_decoder().layers[0].register_forward_hook(
        lambda layer, inputs, output: devices.add(inputs[0].device.type)
    )
    with computing_on(model, torch.device("cuda", 0)):
        assert can_pack(model)
    assert devices == {"cuda"}
    assert _places(model) == homes
