"""The model that a run trains: loaded, with adapters where they are asked for."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from envgym.agents.models.loading import load, load_adapter, load_tokenizer, resolve_model
from envgym.agents.settings import LoraSettings, ModelSettings
from envgym.trainer.learner.causal_lm import without_dropout


def load_model(settings: ModelSettings, device: torch.device, checkpoint: Path | None) -> tuple[Any, Any]:
    """Return (model, tokenizer), with adapters where LoRA is asked for; the weights from `checkpoint`, if given."""
    settings = settings.on(device.type)
    source = str(checkpoint / "model") if checkpoint is not None and settings.lora is None else settings.name
    trainable = settings.lora is None
    loaded = load(
        source,
        dtype=settings.dtype,
        head_dtype=settings.head_dtype,
        device=str(device),
        trainable=trainable,
        tiny=settings.tiny,
    )
    tokenizer = loaded.tokenizer
    if settings.tokenizer is not None:
        tokenizer = load_tokenizer(resolve_model(settings.tokenizer), model=loaded.source)
    model: Any = without_dropout(loaded.model).eval()
    if settings.lora is not None:
        model = _with_adapters(model, settings, checkpoint)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, tokenizer


def _with_adapters(model: nn.Module, settings: ModelSettings, checkpoint: Path | None) -> Any:  # PeftModel
    assert settings.lora is not None, "the caller checked"
    adapter = settings.adapter if checkpoint is None else str(checkpoint / "model")
    if adapter is not None:
        return load_adapter(model, adapter, trainable=True)
    return add_adapters(model, settings.lora)


def add_adapters(model: nn.Module, lora: LoraSettings) -> Any:  # PeftModel
    """Return the model with new low-rank adapters; only they are trained."""
    from peft import LoraConfig, get_peft_model  # optional, and heavy

    targets = lora.target_modules
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)
