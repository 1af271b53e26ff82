"""Matrix products on a CPU in bfloat16, from copies of the weights that lie as the kernels read them.

The product with a plain weight rearranges all of it at every call, which for the few rows of a decoding step takes as
long as the product. Results are the same bit by bit; the copies take as much memory as the weights.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

_ROWS: Final = 16
"""Rows that the copies are laid out for; any number works."""


class PackedLinears:
    """The linear layers of a model and the copies of their weights, made at the first use after `forget`."""

    def __init__(self, module: nn.Module) -> None:
        """Find the layers; nothing is copied yet."""
        self._layers = [layer for layer in module.modules() if type(layer) is nn.Linear]
        self._state: tuple[tuple[int, int], ...] | None = None
        self._forwards: list[tuple[nn.Linear, Callable[[Tensor], Tensor]]] = []

    def forget(self) -> None:
        """Free the copies: the weights are new, or nobody samples for a while."""
        self._state, self._forwards = None, []

    @contextmanager
    def serving(self, state: tuple[tuple[int, int], ...]) -> Iterator[None]:
        """Let the layers multiply by the copies, and put everything back; without gradients.

        Args:
            state: changes whenever a weight does.
        """
        if self._state != state:
            self.forget()
            self._forwards = [(layer, _packed_forward(layer)) for layer in self._layers if can_pack(layer.weight)]
            self._state = state
        forwards = self._forwards
        try:
            for layer, forward in forwards:
                layer.forward = forward  # type: ignore[assignment, method-assign]  # of this layer alone, and only for a while
            yield
        finally:
            for layer, _ in forwards:
                layer.__dict__.pop("forward", None)


def can_pack(weight: Tensor) -> bool:
    """Return whether products with `weight` gain from a copy: bfloat16 on a CPU whose kernels know it."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _packed_forward(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Return what multiplies by a copy of the layer's weight."""
    packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS)
    multiply, bias = torch.ops.mkldnn._linear_pointwise, layer.bias

    def forward(states: Tensor) -> Tensor:
        product: Tensor = multiply(states, packed, bias, "none", [], "")
        return product

    return forward
