"""Products in bfloat16 on a CPU, from copies of the weights that lie as its kernels read them.

The product with a plain weight rearranges all of it at every call, which for the few rows of a decoding step takes as
long as the product; autocast casts it besides. Results are the same bit by bit, under autocast where it reaches the
layers; the copies take as much memory as weights in bfloat16.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

Product = Callable[[Tensor], Tensor]
"""From [..., inputs] to [..., outputs]."""

_ROWS: Final = 16
"""Rows that the copies are laid out for; any number works."""


class PackedLinears:
    """The linear layers of a module, and the copies of their weights; made at the first use after `forget`."""

    def __init__(
        self, module: nn.Module, *, autocast: torch.dtype | None = None, leave_out: Collection[nn.Module] = ()
    ) -> None:
        """Find the layers, except those in `leave_out`; nothing is copied yet. Products are computed in `autocast`."""
        self._autocast = autocast
        self._layers = [layer for layer in module.modules() if type(layer) is nn.Linear and layer not in leave_out]
        self._products: list[tuple[nn.Linear, Product]] | None = None
        """None: to be copied anew."""

    def forget(self) -> None:
        """Free the copies: the weights are new, or nobody samples for a while."""
        self._products = None

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Let the layers multiply by the copies, and put everything back; without gradients."""
        if self._products is None:
            able = (layer for layer in self._layers if can_pack(layer.weight, self._autocast))
            self._products = [(layer, packed_product([layer], self._autocast)) for layer in able]
        products = self._products
        try:
            for layer, product in products:
                layer.forward = product  # type: ignore[assignment, method-assign]  # of this layer alone, and only for a while
            yield
        finally:
            for layer, _ in products:
                layer.__dict__.pop("forward", None)


def can_pack(weight: Tensor, autocast: torch.dtype | None = None) -> bool:
    """Return whether products with `weight` gain from a copy: bfloat16 on a CPU whose kernels know it."""
    if weight.device.type != "cpu" or (autocast or weight.dtype) != torch.bfloat16:
        return False
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed_product(layers: Sequence[nn.Linear], autocast: torch.dtype | None = None) -> Product:
    """Return the product with a copy of the layers' weights, the outputs one after the other."""
    dtype = autocast or layers[0].weight.dtype
    weights = [layer.weight.detach().to(dtype) for layer in layers]
    biases = [layer.bias.detach().to(dtype) for layer in layers if layer.bias is not None]  # type: ignore[redundant-expr]  # it may be
    assert len(biases) in {0, len(layers)}, "all have a bias, or none"
    packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights) if len(weights) > 1 else weights[0], _ROWS)
    multiply, bias = torch.ops.mkldnn._linear_pointwise, torch.cat(biases) if biases else None

    def product(states: Tensor) -> Tensor:
        outputs: Tensor = multiply(states.to(dtype), packed, bias, "none", [], "")
        return outputs

    return product
