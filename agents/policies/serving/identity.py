"""What a model is apart from its weights' values: which two sides of a connection compare."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from envgym.agents.policies.serving.link import ExpectedModel
from envgym.errors import InvalidInput

if TYPE_CHECKING:
    from envgym.agents.settings import ModelSettings


def expected_model(settings: "ModelSettings") -> ExpectedModel:
    """Return the model that the servers of a run must serve; `settings.on` comes first.

    Raises: UnknownName, InvalidInput: no such model.
    """
    from envgym.agents.models.loading import load_model_tokenizer, resolve_model

    architecture = architecture_digest(resolve_model(settings.name, tiny=settings.tiny))
    return ExpectedModel(architecture, tokenizer_digest(load_model_tokenizer(settings)), settings.sampler_dtype)


def architecture_digest(source: str) -> str:
    """Return the `model_digest` of what a directory or a hub name configures; no weight is loaded."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return model_digest(AutoModelForCausalLM.from_config(read_config(source)))


def read_config(source: str) -> Any:  # PretrainedConfig
    """Read the configuration of a directory or a hub name. Raises: InvalidInput: there is none."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        do = "check the name and the network, or name a directory"
        raise InvalidInput.of("model", "be one that loads", source, where=" ".join(lines[:2])[:400], do=do) from error


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
