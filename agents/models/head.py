"""A language-model head that computes in float32, in models whose other products do not.

Logits of size 20 have steps of 0.125 in bfloat16, which an engine and a learner round differently; with both heads in
float32 only the difference of the hidden states is left. Source: 2506.13585.
"""

from typing import Any

import torch
from torch import Tensor, nn

from envgym.errors import InvalidInput, sentence


class Float32Head(nn.Linear):
    """A linear layer that casts what it is given, and its weights, and stands outside of autocast."""

    def forward(self, states: Tensor) -> Tensor:
        """Return float32 logits."""
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
        raise InvalidInput(sentence("output layer", "be a plain nn.Linear", type(layer).__name__, where="head", do=do))
    with torch.device("meta"):
        head = Float32Head(layer.in_features, layer.out_features, bias=layer.bias is not None)
    head.weight, head.bias = layer.weight, layer.bias
    model.set_output_embeddings(head.train(layer.training))
