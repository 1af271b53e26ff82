"""Models taken apart give their own logits, whatever their family does to them, or are refused."""

import copy
from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from envgym.agents.models.weights import widen_head
from envgym.errors import InvalidInput
from envgym.trainer.learner.causal_lm import LmHead, causal_lm, check_head, hidden_states, lm_head_of
from tests.support.logprobs import token_logprobs

SIZES = {
    "vocab_size": 17,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IDS = torch.tensor([[3, 5, 8, 1, 9]])


def _build(family: str, **settings: float) -> PreTrainedModel:
    """Return a tiny model of a family, always with the same weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **settings))
    assert isinstance(model, PreTrainedModel)
    bias = model.get_output_embeddings().bias
    if bias is not None:
        nn.init.normal_(bias)
    model.eval()
    return model


def _llama() -> PreTrainedModel:
    return _build("llama")


def _gemma() -> PreTrainedModel:
    return _build("gemma2", head_dim=4, final_logit_softcapping=1.5)


def _granite() -> PreTrainedModel:
    return _build("granite", logits_scaling=4.0)


def _cohere() -> PreTrainedModel:
    return _build("cohere2", logit_scale=0.25)


def _phi() -> PreTrainedModel:
    return _build("phi")  # its head has a bias


def _dense(model: nn.Module) -> Tensor:
    logp: Tensor = model(input_ids=IDS).logits[:, :-1].log_softmax(dim=-1)
    return logp.gather(-1, IDS[:, 1:, None]).squeeze(-1)


def _chunked(model: nn.Module) -> Tensor:
    ones = torch.ones_like(IDS)
    return token_logprobs(model, input_ids_BT=IDS, attention_mask_BT=ones, chunk_size=2).logprobs_BT[:, 1:]


def _gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def _assert_exact(model: nn.Module) -> None:
    """Assert equal log-probabilities and equal gradients of every parameter, in float64, so that rounding is small."""
    model = copy.deepcopy(model).double()
    torch.testing.assert_close(_chunked(model), _dense(model), rtol=1e-9, atol=1e-11)
    ours, dense = _gradients(model, _chunked(model).sum()), _gradients(model, _dense(model).sum())
    assert ours.keys() == dense.keys()
    assert any(bool(gradient.any()) for gradient in ours.values())
    torch.testing.assert_close(ours, dense, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("build", [_llama, _gemma, _granite, _cohere, _phi])
def test_each_family_s_logits_are_reproduced(build: Callable[[], PreTrainedModel]) -> None:
    model = build()
    check_head(model)
    _assert_exact(model)


def test_the_factors_of_each_family_are_read_from_its_config() -> None:
    assert lm_head_of(_gemma()).softcap == 1.5
    assert lm_head_of(_granite()).scale == 0.25
    assert lm_head_of(_cohere()).scale == 0.25
    assert lm_head_of(_phi()).bias_V is not None
    assert (lm_head_of(_llama()).scale, lm_head_of(_llama()).softcap) == (1.0, None)


def test_tied_embeddings_collect_both_gradients() -> None:
    model = _build("llama", tie_word_embeddings=True)
    assert lm_head_of(model).weight_VD is model.get_input_embeddings().weight
    _assert_exact(model)


def _lora(*, modules_to_save: list[str] | None = None) -> nn.Module:
    """Return a tiny model with a LoRA adapter that is not the identity."""
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM, r=2, target_modules=["q_proj", "v_proj"], modules_to_save=modules_to_save
    )
    model = get_peft_model(_llama(), config).eval()
    for name, value in model.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            nn.init.normal_(value)
    return model


def test_a_lora_adapter_is_seen_and_trained() -> None:
    model = _lora()
    check_head(model)
    _assert_exact(model)
    trained = _gradients(model, _chunked(model).sum())
    assert trained
    assert all("lora_" in name for name in trained)
    assert not torch.allclose(_chunked(model), _chunked(_llama()))


def test_a_disabled_adapter_gives_the_reference() -> None:
    model = _lora(modules_to_save=["lm_head"])
    assert not torch.allclose(_chunked(model), _chunked(_llama()))
    with model.disable_adapter():  # type: ignore[operator]  # peft's own method, hidden behind Module.__getattr__
        torch.testing.assert_close(_chunked(model), _chunked(_llama()))


def test_a_head_that_peft_trains_in_full_gets_its_gradient() -> None:
    model = _lora(modules_to_save=["lm_head"])
    _assert_exact(model)
    assert any("lm_head" in name for name in _gradients(model, _chunked(model).sum()))


def test_a_lora_adapter_on_the_head_is_refused() -> None:
    config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=2, target_modules=["q_proj", "lm_head"])
    model = get_peft_model(_llama(), config)
    with pytest.raises(InvalidInput, match=r"output layer must be a plain nn.Linear, got peft\.\S+\.Linear"):
        lm_head_of(model)


def test_prompt_tuning_and_other_modules_are_refused() -> None:
    prompt = PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=2)
    with pytest.raises(InvalidInput, match="causal language model, got PromptTuningConfig"):
        causal_lm(get_peft_model(_llama(), prompt))
    with pytest.raises(InvalidInput, match="got Linear"):
        causal_lm(nn.Linear(2, 2))


def test_a_model_that_does_something_unknown_to_its_logits_is_refused() -> None:
    model = _build("hyperclovax", logits_scaling=4.0)  # multiplies where Granite divides
    with pytest.raises(InvalidInput, match="HyperCLOVAXForCausalLM"):
        check_head(model)


def test_the_check_leaves_every_module_in_its_mode() -> None:
    model = _llama().train()
    next(iter(model.get_decoder().layers)).eval()
    before = [module.training for module in model.modules()]
    check_head(model)
    assert [module.training for module in model.modules()] == before


def test_the_check_accepts_bf16() -> None:
    check_head(_llama().bfloat16())
    check_head(_gemma().bfloat16())


def test_a_four_dimensional_mask_decides_who_attends_whom() -> None:
    model: PreTrainedModel = _llama()
    # Two rows that share the prefix (3, 5) in one sequence: 3 5 | 8 | 1, where 1 does not see 8.
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]).bool()[None, None]
    packed = hidden_states(
        model,
        input_ids_BT=torch.tensor([[3, 5, 8, 1]]),
        attention_mask=mask,
        position_ids_BT=torch.tensor([[0, 1, 2, 2]]),
    )
    row = hidden_states(model, input_ids_BT=torch.tensor([[3, 5, 1]]))
    torch.testing.assert_close(packed[0, [0, 1, 3]], row[0], rtol=1e-5, atol=1e-5)


def test_a_head_applies_scale_then_cap() -> None:
    head = LmHead(weight_VD=torch.tensor([[2.0], [-1.0]]), bias_V=torch.tensor([1.0, 0.0]), scale=0.5, softcap=3.0)
    # (2 * 2 + 1) / 2 = 2.5 and -2 / 2 = -1, then 3 tanh(x / 3)
    expected = 3 * torch.tanh(torch.tensor([[2.5, -1.0]]) / 3)
    torch.testing.assert_close(head.logits(torch.tensor([[2.0]])), expected)


@pytest.mark.parametrize("way", ["weights", "autocast"])
@pytest.mark.parametrize("build", [_llama, _gemma, _phi])
def test_a_head_in_float32_scores_and_learns_as_the_model_does(build: Callable[[], PreTrainedModel], way: str) -> None:
    def gradients(score: Callable[[nn.Module], Tensor]) -> tuple[Tensor, list[Tensor]]:
        model = build().bfloat16() if way == "weights" else build()
        widen_head(model)
        check_head(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            logp = score(model)
        logp.sum().backward()
        return logp.detach(), [weight.grad.float() for weight in model.parameters() if weight.grad is not None]

    (logp, grads), (dense_logp, dense_grads) = gradients(_chunked), gradients(_dense)
    assert logp.dtype == torch.float32
    torch.testing.assert_close(logp, dense_logp, atol=1e-5, rtol=0)
    # Gradients still run through a body in bfloat16, whose sums are taken in another order: 8 bits.
    for grad, dense_grad in zip(grads, dense_grads, strict=True):
        torch.testing.assert_close(grad, dense_grad, atol=0.02 * dense_grad.abs().max().item(), rtol=0.02)
