"""The forward pass of Llama-shaped models: the bits of the model's own modules, or the modules themselves."""

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
from torch import Tensor
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    HeliumConfig,
    HeliumForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from envgym.agents.policies.engine.cached_model import CachedModel
from envgym.agents.policies.engine.llama_forward import LlamaForward
from tests.agents.policies.small_models import SHAPE, llama, models

FAMILIES = ("llama", "mistral, all layers sliding", "qwen2, mixed layers", "qwen3")
CONTEXTS = (tuple(range(3, 20)), tuple(range(40, 57)), (5, 9, 9, 4))


def adapted() -> peft.PeftModel:
    torch.manual_seed(1)
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    return model


def logits(model: CachedModel, *, own: bool) -> list[Tensor]:
    """Return the logits of a few decoding steps behind contexts of uneven lengths."""
    tokens, lengths = torch.tensor([7, 8, 7]), torch.tensor([len(context) for context in CONTEXTS])
    with model.serving():
        if own:
            model._run = model._run_modules
        model.forget()
        model.cache.reserve(rows=3, columns=24)
        model.prefill(CONTEXTS, [0, 0, 0], 0)
        return [model.decode(tokens + step, lengths + step, 18 + step) for step in range(4)]


@pytest.mark.parametrize(
    "dtype, autocast",
    [(torch.float32, None), (torch.bfloat16, None), (torch.float32, torch.bfloat16)],
    ids=["float32", "bfloat16", "autocast"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_models_modules_bit_by_bit(
    family: str, dtype: torch.dtype, autocast: torch.dtype | None
) -> None:
    torch.manual_seed(0)
    module: torch.nn.Module = models()[family]().eval()
    module = module.to(dtype)
    model = CachedModel(module, autocast=autocast)
    found = logits(model, own=False)
    assert isinstance(model._run, LlamaForward)
    for mine, theirs in zip(found, logits(model, own=True), strict=True):
        assert torch.equal(mine, theirs)


def test_under_autocast_keys_and_values_are_cast_once() -> None:
    model = CachedModel(llama().eval(), autocast=torch.bfloat16)
    logits(model, own=False)
    kept = {tensor.dtype for layer in model.cache._slots() for tensor in (layer.keys, layer.values)}
    assert kept == {torch.bfloat16}


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=str)
def test_adapters_are_applied_to_layers_that_have_them(autocast: torch.dtype | None) -> None:
    module = adapted().eval()
    model = CachedModel(module, autocast=autocast)
    found = logits(model, own=False)
    assert isinstance(model._run, LlamaForward)
    for mine, theirs in zip(found, logits(model, own=True), strict=True):
        assert torch.equal(mine, theirs)
    with module.disable_adapter():
        assert not torch.allclose(found[0], logits(CachedModel(module, autocast=autocast), own=True)[0], atol=1e-2)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=str)
def test_new_weights_are_used_once_the_copies_are_forgotten(autocast: torch.dtype | None) -> None:
    module = llama().eval() if autocast else llama().bfloat16().eval()
    model = CachedModel(module, autocast=autocast)
    old = logits(model, own=False)[0]
    with torch.no_grad():
        module.model.layers[1].self_attn.v_proj.weight.neg_()
        module.lm_head.weight.mul_(2)
    new = logits(model, own=False)[0]
    assert torch.equal(new, logits(model, own=True)[0])
    assert not torch.equal(new, old)


def granite() -> PreTrainedModel:
    return GraniteForCausalLM(GraniteConfig(**SHAPE, residual_multiplier=0.5, embedding_multiplier=3.0))


def layers_without_positions() -> PreTrainedModel:
    return SmolLM3ForCausalLM(SmolLM3Config(**SHAPE, no_rope_layers=[1, 0, 1]))


def hooked() -> PreTrainedModel:
    model = llama()
    model.model.layers[0].register_forward_hook(lambda *_: None)
    return model


def nearly_llama() -> PreTrainedModel:
    return GraniteForCausalLM(GraniteConfig(**SHAPE, residual_multiplier=1.01))


def eager() -> PreTrainedModel:
    return models()["eager"]()


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("build", [granite, nearly_llama, layers_without_positions, hooked, eager])
def test_a_model_that_computes_something_else_or_is_watched_runs_its_own_modules(
    build: Callable[[], PreTrainedModel], autocast: torch.dtype | None
) -> None:
    model = CachedModel(build().eval(), autocast=autocast)
    with model.serving():
        assert model._run == model._run_modules


def helium() -> PreTrainedModel:
    return HeliumForCausalLM(HeliumConfig(**SHAPE, head_dim=8))


def other_activation() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, hidden_act="gelu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("build", [granite, nearly_llama, layers_without_positions, helium, other_activation])
def test_another_architecture_with_fresh_weights_is_not_taken_for_llama(
    build: Callable[[], PreTrainedModel], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = CachedModel(build().eval().to(dtype))
    with model.serving():
        assert model._run == model._run_modules


def test_parts_of_the_same_names_that_do_otherwise_are_not_called(monkeypatch: Any) -> None:  # pytest's
    module = llama().eval()
    monkeypatch.delattr(module.model.layers[2].input_layernorm, "variance_epsilon")
    module.model.layers[2].input_layernorm.__class__ = type("Other", (torch.nn.Identity,), {})
    model = CachedModel(module)
    with model.serving():
        assert model._run == model._run_modules
