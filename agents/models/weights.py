"""The weights of a model as another engine loads them, and a language-model head that computes in float32.

Logits of size 20 have steps of 0.125 in bfloat16, which an engine and a learner round differently; with both heads in
float32 only the difference of the hidden states is left. Source: 2506.13585.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

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


class LowRankChange(NamedTuple):
    """What LoRA adapters add to a weight of shape [out, in]: the product B A."""

    lora_A: Tensor
    """Shape [rank, in]."""
    lora_B: Tensor
    """Shape [out, rank], multiplied by alpha / r."""


@torch.no_grad()
def add_change(name: str, weight: Tensor, change: LowRankChange) -> Tensor:
    """Return W + B A in the type and on the device of W, computed in float32 or wider and rounded once.

    A change of less than half a step of bfloat16 is lost if every sum is rounded to the nearest value, because W itself
    is such a value. Sums are therefore rounded to bfloat16 with dither: the share of weights that move up to the next
    value keeps the mean of the change. The dither depends only on the name and the place of an element, so that every
    process computes the same weights, and nothing is random between versions.

    Args:
        name: of the weight in a checkpoint.
        weight: W, shape [out, in].
        change: the matrices A and B.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    lora_A, lora_B = (matrix.to(weight.device, dtype) for matrix in change)
    total = torch.addmm(weight.to(dtype), lora_B, lora_A)
    return _round_with_dither(name, total) if weight.dtype == torch.bfloat16 else total.to(weight.dtype)


_LOW_BITS: Final = (1 << 16) - 1
"""Of a float32: those that bfloat16 does not have."""
_FACTORS: Final = (-1640531527, 2146121005)
"""Odd numbers that spread the bits of an index over an int32."""


def _round_with_dither(name: str, total: Tensor) -> Tensor:
    """Return float32 values [out, in] in bfloat16; a value that bfloat16 has is kept.

    Adding a number from 0 to 2^16 - 1 to the bits and clearing the low 16 rounds away from zero with the probability
    that the low bits state. The numbers are a hash of the element's index in int32 arithmetic, which wraps around.
    """
    rows, columns = (torch.arange(size, dtype=torch.int32, device=total.device) for size in total.shape)
    dither = rows[:, None] * len(columns) + columns + (zlib.crc32(name.encode()) - (1 << 31))
    for factor in _FACTORS:
        dither *= factor
        dither ^= (dither >> 16) & _LOW_BITS
    bits = dither.bitwise_and_(_LOW_BITS).add_(total.view(torch.int32)).bitwise_and_(~_LOW_BITS)
    return torch.where(total.isfinite(), bits.view(torch.float32), total).bfloat16()


class AdaptedWeights:
    """The weights of a model with LoRA adapters; iterating merges them, W + (alpha / r) B A.

    Every weight comes once, by its name in a checkpoint. The model is not changed.
    """

    def __init__(
        self, model: Any, *, dtype: torch.dtype | None = None, whole: Callable[[Tensor], Tensor] = Tensor.detach
    ) -> None:
        """Read which weights have adapters.

        Args:
            model: a PeftModel.
            dtype: base weights and sums are rounded to this type, matrices are not; None: weights keep their type.
            whole: returns a weight, or a matrix of an adapter, from the model's parameter.

        Raises: InvalidInput: adapters add something other than B A to a weight.
        """
        self._dtype, self._whole = dtype, whole
        self._changed: dict[str, Any] = {}  # peft's layers
        self._weights: list[tuple[str, nn.Parameter]] = []
        base = model.get_base_model()
        for name, layer in base.named_modules():
            if hasattr(layer, "lora_A") and hasattr(layer, "base_layer"):
                _check_adapted(name, layer)
                self._changed[f"{name}.weight"] = layer
        for name, parameter in base.named_parameters():
            if ".lora_" not in name:
                self._weights.append((name.replace(".base_layer.", "."), parameter))

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self.merged()

    def merged(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight with its adapters added."""
        for name, weight in self.base():
            change = self._change_of(name)
            yield name, weight if change is None else add_change(name, weight, change)

    def base(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight without its adapters."""
        for name, parameter in self._weights:
            yield name, rounded(self._whole(parameter), self._dtype)

    def adapters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the matrices of every adapted weight, as `WEIGHT.lora_A` and `WEIGHT.lora_B`."""
        for weight in self._changed:
            change = self._change_of(weight)
            if change is not None:
                yield from ((f"{weight}.{field}", matrix) for field, matrix in change._asdict().items())

    @property
    def base_state(self) -> tuple[tuple[int, int], ...]:
        """A value that differs after another tensor, or an in-place operation, has replaced a base weight."""
        local = [getattr(parameter, "_local_tensor", parameter) for _, parameter in self._weights]  # of a shard
        return tuple((tensor.data_ptr(), tensor._version) for tensor in local)

    @torch.no_grad()
    def _change_of(self, weight: str) -> LowRankChange | None:
        layer = self._changed.get(weight)
        if layer is None:
            return None
        matrices = [_matrices(layer, adapter, self._whole) for adapter in layer.active_adapters]
        used = [pair for pair in matrices if pair is not None]
        if not used:
            return None
        return LowRankChange(torch.cat([pair.lora_A for pair in used]), torch.cat([pair.lora_B for pair in used], 1))


def merged_weights(model: Any, *, dtype: torch.dtype | None = None) -> Iterable[tuple[str, Tensor]]:
    """Return every weight once, by its name in a checkpoint; adapters are merged, see `AdaptedWeights`.

    What shares its memory with a weight that came before (a tied head) is left out.

    Args:
        model: a PreTrainedModel, or a PeftModel around one.
        dtype: weights are rounded to this type; None: weights keep their type.

    Raises: InvalidInput: as `AdaptedWeights`.
    """
    if hasattr(model, "peft_config"):
        return AdaptedWeights(model, dtype=dtype)
    return ((name, rounded(parameter.detach(), dtype)) for name, parameter in model.named_parameters())


def rounded(weight: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a weight in a type; None: in its own."""
    return weight if dtype is None else weight.to(dtype)


def _check_adapted(name: str, layer: Any) -> None:  # peft's LoRA layer
    """Check that what an adapter adds is a product of two matrices. Raises: InvalidInput: it is not."""
    from peft.tuners.lora import Embedding, Linear  # optional, and heavy

    kind = next(iter(layer.lora_variant.values()), None) or layer
    is_plain = kind is layer and type(layer) in (Linear, Embedding) and not any(layer.lora_bias.values())
    must, do = "be plain LoRA, W + B A, without DoRA or biases", "train or export the adapter with plain LoRA"
    InvalidInput.unless(is_plain and not layer.merged, "adapter", must, type(kind).__name__, where=name, do=do)


def _matrices(
    layer: Any,  # as above
    adapter: str,
    whole: Callable[[Tensor], Tensor],
) -> LowRankChange | None:
    """Return the change of a layer's weight by one adapter; None: this adapter does not change the layer."""
    if adapter in layer.lora_A:
        lora_A, lora_B = whole(layer.lora_A[adapter].weight), whole(layer.lora_B[adapter].weight)
    elif adapter in layer.lora_embedding_A:  # a weight [vocabulary, width], to which (B A)^T is added
        lora_A = whole(layer.lora_embedding_B[adapter]).T
        lora_B = whole(layer.lora_embedding_A[adapter]).T
    else:
        return None
    if getattr(layer, "fan_in_fan_out", False) and adapter in layer.lora_A:  # a weight [in, out]
        lora_A, lora_B = lora_B.T, lora_A.T
    return LowRankChange(lora_A, lora_B * layer.scaling[adapter])
