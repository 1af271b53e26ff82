"""Load a model by its settings, and the policy that samples from it in this process."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from envgym.agents.eval_settings import Engine, EvalModel
from envgym.agents.models.loading import load
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.backends import PolicySettings, start_vllm
from envgym.agents.policies.transformers import TransformersPolicy
from envgym.agents.protocols import Policy
from envgym.errors import InvalidInput, SettingsError, sentence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A policy with the tokenizer of its model."""

    policy: Policy
    tokenizer: "PreTrainedTokenizerFast"


def load_local(settings: EvalModel, engine: Engine, chosen: PolicySettings) -> LocalModel:
    """Load weights, adapter and tokenizer, and start the engine that was chosen.

    Raises: UnknownName, InvalidInput: no such model, or an adapter that does not fit. SettingsError: no such device, or
        no such engine.
    """
    device = pick_device(engine.device)
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    loaded = load(
        settings.name,
        dtype=settings.dtype,
        head_dtype=settings.head_dtype,
        device=str(device),
        tiny=settings.tiny,
    )
    model: Any = loaded.model  # PreTrainedModel, or PeftModel around it
    if settings.adapter is not None:
        model = _with_adapter(model, settings.adapter)
    autocast = torch.bfloat16 if settings.autocast == "bfloat16" else None
    policy: Policy
    if chosen.backend == "vllm":
        dtype = settings.dtype if autocast is None else "bfloat16"
        policy = start_vllm(
            chosen,
            loaded.source,
            dtype=dtype,
            head_dtype=settings.head_dtype,
            max_batch=engine.max_batch,
            threads=engine.threads,
        )
        if settings.adapter is None:
            policy.set_version(settings.steps)
        else:
            policy.update_weights(merged_weights(model), settings.steps)
    else:
        policy = TransformersPolicy(
            model, device=device, max_batch=engine.max_batch, autocast=autocast, version=settings.steps
        )
    return LocalModel(policy, loaded.tokenizer)


def _with_adapter(model: Any, directory: str) -> Any:  # as above
    from peft import PeftModel  # optional, and heavy

    try:
        return PeftModel.from_pretrained(model, directory).eval()
    except (OSError, ValueError, RuntimeError) as error:
        do = "name the directory that a LoRA run saved, and the model that it was trained on"
        reason = str(error).strip().splitlines()[0]
        raise InvalidInput(sentence("adapter", "fit the model", directory, where=reason, do=do)) from error


def pick_device(name: str) -> torch.device:
    """Return the device called `name`; `auto` takes CUDA where there is one. Raises: SettingsError: none such."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or (device.type == "cuda" and not torch.cuda.is_available()):
        do = "use cpu, cuda or auto"
        raise SettingsError(sentence("device", "be at hand", name, where="settings", do=do))
    return device
