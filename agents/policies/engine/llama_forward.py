"""The forward pass of Llama-shaped models (Llama, Mistral, Qwen2, Qwen3, SmolLM2) as one sequence of tensor operations.

The same operations on the same numbers as in the model's own modules, so the same bits, in fewer calls: a decoding step
of a small model spends as long on calls as on products. Query, key and value are one product where weights are copied
anyway. Whether a model is of that shape is read from its architecture, activation and parts, then checked by running it
both ways once. Numbers alone do not decide: with fresh weights in bfloat16, other architectures differ by too little.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from envgym.agents.policies.engine.cache import SlotCache, attention_mask, grouped_attention
from envgym.agents.policies.engine.packed_linears import Product, can_pack, packed_product

_MODEL_TYPES: Final = frozenset({"cwm", "llama", "mistral", "qwen2", "qwen3", "seed_oss"})
"""Architectures of transformers that compute as written here, where they have these parts."""
_PARTS: Final = {
    "": {"model", "lm_head"},
    "model": {"embed_tokens", "layers", "norm", "rotary_emb"},
    "layer": {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
    "self_attn": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "mlp": {"gate_proj", "up_proj", "down_proj", "act_fn"},
}
_HEAD_NORMS: Final = {"q_norm", "k_norm"}
_PROBE: Final = ((0, 1, 2, 3, 1, 2, 0), (3, 0, 1, 1, 2, 0, 3))
_TOLERANCE: Final = 1e-4
"""Of the root mean square: far above rounding in float32, far below what another architecture makes."""


class Forward(Protocol):
    """A forward pass."""

    def __call__(
        self, ids: Tensor, positions: Tensor, masks: Mapping[str, Tensor], cache: SlotCache, *, keep: int
    ) -> Tensor:
        """Return [B, keep, V] the logits of the last `keep` tokens.

        Args:
            ids: [B, T].
            positions: [B or 1, T].
            masks: for each kind of attention [B or 1, 1, T, S] True where a token may look.
            cache: told where to write.
            keep: how many of the T; 0 only fills the cache.
        """


class LlamaForward:
    """Computes what a model computes, without gradients; see `Forward`."""

    def __init__(
        self,
        model: Any,  # transformers types parts of a model as tensors
        kinds: Sequence[str],
        autocast: torch.dtype | None,
    ) -> None:
        """Take a Llama-shaped model, each layer's kind of attention, and the type of products under autocast."""
        self._model, self._body, self._autocast = model, model.model, autocast
        self._layers = [_Layer(layer, kind, autocast) for layer, kind in zip(model.model.layers, kinds, strict=True)]
        self._head: Product | None = None

    def linears(self) -> list[nn.Module]:
        """Return the layers whose products are made here, from copies where these help."""
        return [part for layer in self._layers for group in layer.groups for part in group] + [self._model.lm_head]

    def forget(self) -> None:
        """Free the copies of weights: they are new, or nobody samples for a while."""
        self._head = None
        for layer in self._layers:
            layer.products = None

    def __call__(
        self, ids: Tensor, positions: Tensor, masks: Mapping[str, Tensor], cache: SlotCache, *, keep: int
    ) -> Tensor:
        """Return [B, keep, V] logits."""
        states = functional.embedding(ids, self._body.embed_tokens.weight)
        cos, sin = self._body.rotary_emb(states, positions)
        low, high = sin[:, :, None].chunk(2, -1)
        rotation = cos[:, :, None], torch.cat((-low, high), dim=-1)
        for number, layer in enumerate(self._layers):
            states = layer(states, rotation, masks[layer.kind], cache, number)
        if self._head is None:
            self._head = _product([self._model.lm_head], self._autocast)
        return self._head(_rms_norm(states[:, states.shape[1] - keep :], self._body.norm))


class _Layer:
    def __init__(self, layer: Any, kind: str, autocast: torch.dtype | None) -> None:  # see LlamaForward
        self.kind, self._autocast = kind, autocast
        self._attention = attention = layer.self_attn
        self._norms = layer.input_layernorm, layer.post_attention_layernorm
        self._head_norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.groups: list[list[nn.Module]] = [
            projections,
            [attention.o_proj],
            [layer.mlp.gate_proj],
            [layer.mlp.up_proj],
            [layer.mlp.down_proj],
        ]
        self.products: list[Product] | None = None
        """Of the groups; None: to be made, from the weights as they are then."""

    def __call__(
        self, states: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: SlotCache, number: int
    ) -> Tensor:
        """Return [B, T, D] the states behind the layer, of those before it."""
        if self.products is None:
            self.products = [_product(group, self._autocast) for group in self.groups]
        project, output, gate, up, down = self.products
        heads = project(_rms_norm(states, self._norms[0])).unflatten(-1, (-1, self._attention.head_dim))
        num_kv = heads.shape[2] // (self._attention.num_key_value_groups + 2)
        sizes = heads.shape[2] - 2 * num_kv, num_kv
        rotated, value = heads.split((sum(sizes), num_kv), 2)
        if self._head_norms is not None:
            pairs = zip(rotated.split(sizes, 2), self._head_norms, strict=True)
            rotated = torch.cat([_rms_norm(part, norm) for part, norm in pairs], dim=2)
        cos, turned_sin = rotation
        half = rotated.shape[-1] // 2
        rotated = (rotated * cos).add_(_times(rotated.roll(half, -1), turned_sin))
        query, key = rotated.transpose(1, 2).split(sizes, 1)
        keys, values = cache.update(key, value.transpose(1, 2), number)
        attended, _ = grouped_attention(self._attention, query, keys, values, mask, self._attention.scaling)
        states = _plus(output(attended.flatten(2)), states)
        normed = _rms_norm(states, self._norms[1])
        return _plus(down(functional.silu(gate(normed), inplace=True).mul_(up(normed))), states)


def llama_forward(
    module: nn.Module, kinds: Sequence[str], *, autocast: torch.dtype | None = None
) -> LlamaForward | None:
    """Return the forward pass of a Llama-shaped architecture that has the parts of a Llama and no others, else None.

    A subclass may still compute something else: see `find_difference`.

    Args:
        module: a transformers model, or a PEFT model around one.
        kinds: of attention that the model has.
        autocast: under which it runs, if any.
    """
    model: Any = module.get_base_model() if hasattr(module, "get_base_model") else module  # type: ignore[operator]  # see LlamaForward
    if any(part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) for part in module.modules()):
        return None  # somebody wants the modules to be called
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in _MODEL_TYPES or getattr(config, "hidden_act", None) != "silu":
        return None
    if _names(model) != _PARTS[""] or _names(model.model) != _PARTS["model"]:
        return None
    for layer in model.model.layers:
        if _names(layer) != _PARTS["layer"] or _names(layer.mlp) != _PARTS["mlp"]:
            return None
        if _names(layer.self_attn) - _HEAD_NORMS != _PARTS["self_attn"]:
            return None
    kinds_by_layer = getattr(model.config, "layer_types", None) or list(kinds) * len(model.model.layers)
    return LlamaForward(model, kinds_by_layer, autocast)


def find_difference(
    one: Forward,
    other: Forward,
    windows: Mapping[str, int | None],
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> str | None:
    """Return how the logits of a few tokens differ between two forward passes; None: they agree within rounding.

    The pass `other` may fail: its error is then the difference.
    """
    ids = torch.tensor(_PROBE, device=device)
    positions = torch.arange(ids.shape[1], device=device)[None]
    masks = {kind: attention_mask(positions, ids.shape[1], window) for kind, window in windows.items()}

    def logits(forward: Forward) -> Tensor:
        cache = SlotCache(dtype)
        cache.reserve(rows=len(ids), columns=ids.shape[1])
        cache.writing(0, len(ids), ids.shape[1])
        return forward(ids, positions, masks, cache, keep=ids.shape[1])

    expected = logits(one)
    try:
        actual = logits(other)
    except Exception as error:  # noqa: BLE001  # whatever parts of the same names do otherwise
        return f"{type(error).__name__}: {error}"
    square = (actual - expected).double().square().mean() / expected.double().square().mean()
    gap, bound = square.sqrt().item(), max(_TOLERANCE, 16 * torch.finfo(expected.dtype).eps)
    return None if gap <= bound else f"its logits are {gap:.2g} of their size apart, and may be {bound:.2g}"


def _names(module: Any) -> set[str]:  # see LlamaForward
    return {name for name, _ in module.named_children()}


def _rms_norm(states: Tensor, norm: Any) -> Tensor:  # see LlamaForward
    wide = states.float()
    scale = wide.pow(2).mean(-1, keepdim=True).add_(norm.variance_epsilon).rsqrt_()
    return _times((wide * scale).to(states.dtype), norm.weight)


def _plus(own: Tensor, other: Tensor) -> Tensor:
    """Return the sum, in place of `own` unless autocast made the types differ."""
    return own.add_(other) if own.dtype == other.dtype else own + other


def _times(own: Tensor, other: Tensor) -> Tensor:
    return own.mul_(other) if own.dtype == other.dtype else own * other


def _product(layers: Sequence[Any], autocast: torch.dtype | None) -> Product:  # see LlamaForward
    """Return the function that computes the outputs of linear layers, one after the other."""
    if all(type(layer) is nn.Linear and can_pack(layer.weight, autocast) for layer in layers):
        return packed_product(layers, autocast)
    singles = [_plain_product(layer) if type(layer) is nn.Linear else layer for layer in layers]
    if len(singles) == 1:
        return singles[0]
    return lambda states: torch.cat([single(states) for single in singles], dim=-1)


def _plain_product(layer: nn.Linear) -> Product:
    return lambda states: functional.linear(states, layer.weight, layer.bias)
