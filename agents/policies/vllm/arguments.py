"""Arguments of vLLM's engine that a user passes through, and how many devices split a model."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from envgym.errors import InvalidInput, check_known


def check_names(arguments: Mapping[str, Any], *, where: str) -> None:
    """Check that the installed vLLM has the arguments; it has been imported before.

    Raises: UnknownName: vLLM has no such argument; near names are listed.
    """
    if arguments:
        from dataclasses import fields

        from vllm import AsyncEngineArgs

        names = [field.name for field in fields(AsyncEngineArgs) if not field.name.startswith("_")]
        for name in arguments:
            check_known("argument of vLLM", name, names, where=where)


def check_split(config: Any, size: int, *, where: str) -> None:  # PretrainedConfig
    """Check that the weights of a model can be split over devices of this process, before anything is loaded.

    Args:
        config: of the model.
        size: number of devices.
        where: what splits it.

    Raises: InvalidInput: the heads of its attention cannot be divided so, or there are fewer devices.
    """
    if size == 1:
        return
    what, do, text = "engine.tensor_parallel", "choose another number", config.get_text_config()
    heads: int = text.num_attention_heads
    kv_heads: int = getattr(text, "num_key_value_heads", None) or heads
    InvalidInput.unless(
        heads % size == 0, what, f"divide the model's {heads} attention heads", size, where=where, do=do
    )
    must = f"divide the model's {kv_heads} key-value heads, or be a multiple of them"
    InvalidInput.unless(kv_heads % size == 0 or size % kv_heads == 0, what, must, size, where=where, do=do)
    is_cuda = torch.cuda.is_available()
    count, kind = (torch.cuda.device_count(), "GPUs") if is_cuda else (os.cpu_count() or 1, "CPUs")
    must, do = f"be at most {count}, the number of {kind}", "lower it"
    InvalidInput.unless(size <= count, what, must, size, where=where, do=do)
