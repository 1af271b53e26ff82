"""The weights of a model as another engine loads them, and a language-model head that computes in float32.

Logits of size 20 have steps of 0.125 in bfloat16, which an engine and a learner round differently; with both heads in
float32 only the difference of the hidden states is left. Source: 2506.13585.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from envgym.errors import InvalidInput


class Float32Head(nn.Linear):
    """A linear layer that casts what it is given, and its weights, and stands outside of autocast."""

    def forward(self, states: Tensor) -> Tensor:
        bias: Tensor | None = self.bias
        with torch.autocast(states.device.type, enabled=False):
            return nn.functional.linear(states.float(), self.weight.float(), None if bias is None else bias.float())


def widen_head(model: Any) -> None:  # PreTrainedModel
    """Let the model's head compute in float32; its weights stay what they are, tied or not.

    Raises: InvalidInput: the head is not one plain linear layer.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear:
        do = "leave model.head_dtype at same"
        raise InvalidInput.of("output layer", "be a plain nn.Linear", type(layer).__name__, where="head", do=do)
    with torch.device("meta"):
        head = Float32Head(layer.in_features, layer.out_features, bias=layer.bias is not None)
    head.weight, head.bias = layer.weight, layer.bias
    model.set_output_embeddings(head.train(layer.training))


def merged_weights(model: Any, *, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight once; with LoRA adapters W + (alpha / r) B A, computed without changing the model.

    Names are those of the checkpoint. What shares its memory with a weight that came before (a tied head) is left out.

    Args:
        model: a PreTrainedModel, or a PeftModel around one.
        dtype: the sums are rounded to this type; None: weights keep their type.
    """
    for name, weight in _weights(model):
        yield name, weight if dtype is None else weight.to(dtype)


def _weights(model: Any) -> Iterator[tuple[str, Tensor]]:  # PreTrainedModel or PeftModel
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
