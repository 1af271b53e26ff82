"""Attention for sampling: SDPA that reads grouped key-value heads in place instead of copying them for every query."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from envgym.errors import InvalidInput, sentence

NAME = "envgym_grouped"
_BEYOND = ("s_aux", "position_bias", "softcap")
"""What some models add to the scores; SDPA cannot, so those models must be loaded with eager attention."""


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Attend with the query heads of a group stacked along the query axis of their one key-value head.

    Args:
        module: the model's attention layer.
        query: [B, heads, T, D].
        key: [B, key-value heads, S, D].
        value: [B, key-value heads, S, D].
        attention_mask: [B or 1, 1, T, S] True where a token may look.
        scaling: factor of the scores; None: 1 / sqrt(D).
        options: whatever else the model passes; dropout is off while sampling.

    Returns:
        [B, T, heads, D], and no weights.
    """
    if beyond := [name for name in _BEYOND if options.get(name) is not None]:
        do = "load the model with attn_implementation='eager'"
        raise InvalidInput(sentence("attention", "be plain", beyond[0], where=type(module).__name__, do=do))
    num_rows, num_heads, num_queries, width = query.shape
    groups = num_heads // key.shape[1]
    if groups > 1 and num_queries > 1:
        attention_mask = attention_mask.repeat(1, 1, groups, 1)
    stacked = query.reshape(num_rows, key.shape[1], groups * num_queries, width)
    output = nn.functional.scaled_dot_product_attention(stacked, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(num_rows, num_heads, num_queries, -1).transpose(1, 2).contiguous(), None


def configs_of(model: nn.Module) -> list[Any]:  # transformers' configs, whose attribute below is theirs
    """Return each configuration that a part of the model reads, outer ones first."""
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    return [config for config in configs.values() if hasattr(config, "_attn_implementation")]


@contextmanager
def grouped(configs: Sequence[Any]) -> Iterator[None]:  # see configs_of
    """Sample with `grouped_attention`; eager attention is left alone, and everything is put back."""
    AttentionInterface.register(NAME, grouped_attention)
    before = [config._attn_implementation for config in configs]
    for config, name in zip(configs, before, strict=True):
        if name != "eager":
            config._attn_implementation = NAME
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def needs_additive_mask(configs: Sequence[Any]) -> bool:  # see configs_of
    """Return whether the model adds its mask to the scores instead of selecting by it."""
    return any(config._attn_implementation == "eager" for config in configs)


def as_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where `mask` is True, the lowest number elsewhere."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
