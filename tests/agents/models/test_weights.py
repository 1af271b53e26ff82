"""Weights by the names of the checkpoint, adapters merged."""

import pytest
import torch

from envgym.agents.models.weights import merged_weights
from tests.agents.policies.small_models import llama, raw_logprobs


@pytest.mark.parametrize("tied", [True, False])
def test_a_plain_models_weights_are_its_own_each_once(tied: bool) -> None:
    model = llama(tie_word_embeddings=tied)
    found = dict(merged_weights(model))
    assert found.keys() == dict(model.named_parameters()).keys()
    assert ("lm_head.weight" in found) is not tied
    assert all(tensor.data_ptr() == model.get_parameter(name).data_ptr() for name, tensor in found.items())


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "embed_tokens"]])
def test_merged_weights_in_a_plain_model_compute_what_the_adapted_one_does(targets: str | list[str]) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=targets))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    plain, ids = llama(), range(3, 40)
    before = raw_logprobs(plain, ids)
    assert plain.load_state_dict(dict(merged_weights(adapted))) == ([], [])
    expected = raw_logprobs(adapted.eval(), ids)
    assert torch.allclose(raw_logprobs(plain, ids), expected, atol=1e-5)
    assert (expected - before).abs().max() > 0.1
    assert all("lora" not in name for name, _ in merged_weights(plain))
