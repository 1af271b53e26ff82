"""Small models of several architectures, and requests to ask them with, for the tests of the transformers policy."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from envgym.agents.policies.engine.decode_graphs import Recorder
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling

VOCABULARY = 97
SHAPE: dict[str, Any] = {  # settings of several config classes
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
Recorders = Mapping[str, Callable[[torch.device], Recorder]]
CPU_RECORDER: Recorders = {"cpu": lambda device: lambda work: work}
"""Does what a recording would do: the same work again, on what the same tensors hold then."""
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


def llama(**changes: Any) -> LlamaForCausalLM:  # settings of LlamaConfig
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(SHAPE | changes)))


def adapted(model: PreTrainedModel, rank: int = 1, targets: str | Sequence[str] = ("q_proj", "v_proj")) -> Any:
    """Return a PeftModel with LoRA adapters, the second matrix of each still zero."""
    peft = pytest.importorskip("peft")
    targets = targets if isinstance(targets, str) else list(targets)
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=3, target_modules=targets))


@torch.no_grad()
def train_adapters(model: Any, seed: int) -> None:  # PeftModel
    """Give every adapter new random matrices."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.normal_(std=0.2)


def models() -> dict[str, Callable[[], PreTrainedModel]]:
    def eager() -> PreTrainedModel:
        model = llama()
        model.set_attn_implementation("eager")
        return model

    gpt2: dict[str, Any] = {"vocab_size": VOCABULARY, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4}
    gpt2 |= {"bos_token_id": 0, "eos_token_id": 1}
    mixed: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 8, "layer_types": MIXED}
    return {
        "llama": llama,
        "eager": eager,
        "mistral, all layers sliding": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8)),
        "qwen2, mixed layers": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, **mixed)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
        "gemma3, mixed layers": lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(**SHAPE, head_dim=16, sliding_window=8, layer_types=MIXED)
        ),
        "gpt2, learned positions": lambda: GPT2LMHeadModel(GPT2Config(**gpt2)),
    }


def contexts(count: int = 12) -> list[tuple[int, ...]]:
    """Return contexts of uneven lengths; one twice, and one that differs from another in its last token only."""
    draw = random.Random(0)
    found = [tuple(draw.randrange(3, VOCABULARY) for _ in range(draw.choice([1, 2, 5, 17, 33]))) for _ in range(count)]
    return [*found[:-2], found[3], (*found[3][:-1], 7)]


def request(context: Sequence[int], seed: int = 0, **sampling: Any) -> GenerateRequest:  # settings of Sampling
    rules = {"max_new_tokens": 12} | sampling
    return GenerateRequest(token_ids=tuple(context), sampling=Sampling(**rules), seed=seed)


def generate(policy: TransformersPolicy, requests: Sequence[GenerateRequest]) -> list[Generation]:
    async def together() -> list[Generation]:
        return list(await asyncio.gather(*[policy.generate(item) for item in requests]))

    return asyncio.run(together())


@torch.no_grad()
def raw_logprobs(model: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Return [T, V]: row t is the distribution of the token behind the first t + 1."""
    return raw_logits(model, token_ids).log_softmax(-1)


@torch.no_grad()
def raw_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Return [T, V]: row t are the logits of the token behind the first t + 1."""
    logits: torch.Tensor = model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits
    return logits[0].float()
