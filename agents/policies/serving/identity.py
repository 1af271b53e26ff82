"""What a model is apart from its weights' values: which two sides of a connection compare."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from envgym.agents.policies.serving.link import ExpectedModel

if TYPE_CHECKING:
    from envgym.agents.settings import ModelSettings


def expected_model(settings: "ModelSettings") -> ExpectedModel:
    """Return what servers of a run's model must serve. Raises: UnknownName, InvalidInput: no such model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from envgym.agents.models.loading import load_model_tokenizer, resolve_model

    config = AutoConfig.from_pretrained(resolve_model(settings.name, tiny=settings.tiny), trust_remote_code=False)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    digest = tokenizer_digest(load_model_tokenizer(settings))
    return ExpectedModel(model_digest(module), digest, settings.dtype)


def model_digest(module: nn.Module) -> str:
    """Return the sha256 of names and shapes of all weights."""
    shapes = sorted((name, list(parameter.shape)) for name, parameter in module.named_parameters())
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:  # PreTrainedTokenizerBase
    """Return the sha256 of a tokenizer's vocabulary, added tokens included."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def max_positions(module: nn.Module) -> int | None:
    """Return the positions of a model, for context and sample; None: unlimited."""
    config: Any = module.config
    positions: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return positions
