"""The weights of a model by the names of its checkpoint, adapters merged: what another engine loads."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:  # PreTrainedModel, or PeftModel around one
    """Yield every weight once; with LoRA adapters W + (alpha / r) B A, computed without changing the model.

    What shares its memory with a weight that came before (a tied head) is left out.
    """
    if not hasattr(model, "peft_config"):
        for name, parameter in model.named_parameters():
            yield name, parameter.detach()
        return
    base = model.get_base_model()
    deltas = {}
    for name, module in base.named_modules():
        if hasattr(module, "get_delta_weight") and not module.merged:
            deltas[f"{name}.base_layer.weight"] = module
    for name, parameter in base.named_parameters():
        if ".lora_" in name:
            continue
        weight = parameter.detach()
        if name in deltas:
            weight = _with_adapters(weight, deltas[name])
        yield name.replace(".base_layer.", "."), weight


@torch.no_grad()
def _with_adapters(weight: Tensor, layer: Any) -> Tensor:  # peft's LoRA layer
    for adapter in layer.active_adapters:
        if adapter in layer.lora_A or adapter in layer.lora_embedding_A:
            weight = weight + layer.get_delta_weight(adapter).to(weight.dtype)
    return weight
