"""Weights by the names of the checkpoint, adapters merged."""

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from envgym.agents.models.loading import load
from envgym.agents.models.weights import (
    AdaptedWeights,
    Float32Head,
    LowRankChange,
    add_change,
    merged_weights,
    widen_head,
)
from envgym.errors import InvalidInput, UnknownName
from tests.agents.policies.small_models import adapted, llama, models, raw_logprobs, train_adapters

IDS = torch.tensor([[5, 6, 7, 8]])


@pytest.mark.parametrize("way", ["weights", "autocast"])
def test_logits_are_float32_products_of_the_hidden_states(way: str) -> None:
    model = llama().bfloat16() if way == "weights" else llama()
    widen_head(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        hidden = model.model(input_ids=IDS).last_hidden_state
        logits = model(input_ids=IDS).logits
    assert logits.dtype == torch.float32
    assert torch.equal(logits, hidden.float() @ model.lm_head.weight.float().T)
    assert not torch.equal(logits, logits.bfloat16().float())


def test_a_hand_case_that_bfloat16_rounds_away() -> None:
    layer = Float32Head(1, 2, bias=False, dtype=torch.bfloat16)
    layer.weight.data = torch.tensor([[20.0], [20.125]], dtype=torch.bfloat16)
    states = torch.tensor([[1.0078125]], dtype=torch.bfloat16)  # 1 + 2**-7: its products need more than 8 bits
    assert layer(states).tolist() == [[20.15625, 20.2822265625]]
    assert nn.functional.linear(states, layer.weight).tolist() == [[20.125, 20.25]]


@pytest.mark.parametrize("tied", [True, False])
def test_weights_keep_their_names_and_stay_tied(tied: bool, tmp_path: Path) -> None:
    plain, wide = llama(tie_word_embeddings=tied), llama(tie_word_embeddings=tied)
    widen_head(wide)
    assert {name for name, _ in wide.named_parameters()} == {name for name, _ in plain.named_parameters()}
    assert (wide.lm_head.weight is wide.model.embed_tokens.weight) == tied
    wide.save_pretrained(tmp_path)
    assert torch.equal(type(plain).from_pretrained(tmp_path)(IDS).logits, plain(IDS).logits)


def test_load_widens_the_head_only_where_asked() -> None:
    assert type(load("tiny").model.get_output_embeddings()) is nn.Linear
    assert type(load("tiny", head_dtype="float32").model.get_output_embeddings()) is Float32Head
    with pytest.raises(UnknownName, match="did you mean float32"):
        load("tiny", head_dtype="float23")


def test_a_head_of_another_kind_is_refused() -> None:
    model = llama()
    model.set_output_embeddings(nn.Sequential(model.lm_head))
    with pytest.raises(InvalidInput, match=r"output layer must be a plain nn\.Linear, got Sequential"):
        widen_head(model)


@pytest.mark.parametrize("tied", [True, False])
def test_a_plain_models_weights_are_its_own_each_once(tied: bool) -> None:
    model = llama(tie_word_embeddings=tied)
    found = dict(merged_weights(model))
    assert found.keys() == dict(model.named_parameters()).keys()
    assert ("lm_head.weight" in found) is not tied
    assert all(tensor.data_ptr() == model.get_parameter(name).data_ptr() for name, tensor in found.items())


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "embed_tokens"]])
def test_merged_weights_in_a_plain_model_compute_what_the_adapted_one_does(targets: str | list[str]) -> None:
    model = adapted(llama(), 4, targets)
    train_adapters(model, seed=0)
    plain, ids = llama(), range(3, 40)
    before = raw_logprobs(plain, ids)
    assert plain.load_state_dict(dict(merged_weights(model))) == ([], [])
    expected = raw_logprobs(model.eval(), ids)
    assert torch.allclose(raw_logprobs(plain, ids), expected, atol=1e-5)
    assert (expected - before).abs().max() > 0.1
    assert all("lora" not in name for name, _ in merged_weights(plain))


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
def test_matrices_of_a_layer_that_keeps_its_weight_transposed_merge_as_peft_does() -> None:
    model = adapted(models()["gpt2, learned positions"](), 2, ["c_attn"])
    train_adapters(model, seed=0)
    merged = dict(merged_weights(model))
    expected = dict(model.merge_and_unload().named_parameters())
    assert all(torch.allclose(merged[name], tensor, atol=1e-6) for name, tensor in expected.items())


def test_worked_example_of_adding_a_change() -> None:
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    change = LowRankChange(torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5], [2.0]]))
    assert add_change("w", weight, change).tolist() == [[1.5, 1.5], [5.0, 2.0]]
    # 1 + 2^-9 lies a quarter of the way from 1 to the next bfloat16, 1 + 2^-7: a quarter of the weights move up
    small = LowRankChange(torch.full((1, 256), 2.0**-9), torch.ones(256, 1))
    moved = add_change("w", torch.ones(256, 256, dtype=torch.bfloat16), small)
    assert set(moved.flatten().tolist()) == {1.0, 1 + 2.0**-7}
    assert (moved > 1).float().mean().item() == pytest.approx(0.25, abs=0.01)


def test_weights_in_bfloat16_stay_without_a_change_and_keep_the_mean_of_a_small_one() -> None:
    weight = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0)).mul(0.02).bfloat16()
    none = LowRankChange(torch.randn(1, 1024), torch.zeros(1024, 1))
    assert torch.equal(add_change("w", weight, none).view(torch.int16), weight.view(torch.int16))
    small = LowRankChange(torch.full((1, 1024), 1e-6), torch.ones(1024, 1))
    large = weight.abs() > 0.005  # others have steps so small that they move without dither, too
    moved, nearest = add_change("w", weight, small), weight.float().add(1e-6).bfloat16()
    assert (moved.float() - weight.float())[large].mean().item() == pytest.approx(1e-6, rel=0.05)
    assert (nearest.float() - weight.float())[large].mean().item() < 0.05e-6
    assert torch.equal(moved, add_change("w", weight, small))
    assert not torch.equal(moved, add_change("v", weight, small))


def test_sums_that_are_no_numbers_stay_so() -> None:
    bits = torch.tensor([[0x7FFFFFFF, 0x7F800000, -0x800000]], dtype=torch.int32)  # nan as CUDA writes it, inf, -inf
    weight = torch.zeros(1, 3, dtype=torch.bfloat16)
    moved = add_change("w", weight, LowRankChange(bits.view(torch.float32), torch.ones(1, 1)))
    assert moved.isnan().tolist() == [[True, False, False]]
    assert moved[0, 1:].tolist() == [float("inf"), float("-inf")]


def test_a_sampler_in_bfloat16_moves_as_far_as_the_learner_in_its_first_step() -> None:
    peft = pytest.importorskip("peft")
    plain, ids = llama(hidden_size=512, intermediate_size=1024), torch.randint(97, (8, 64))
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(parameter.bfloat16())  # as a checkpoint has them
    sampler = copy.deepcopy(plain)
    model = peft.get_peft_model(plain, peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))

    def logprobs(of: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = of(input_ids=ids).logits
        return logits.log_softmax(-1)

    before = logprobs(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, weight_decay=0)
    nn.functional.cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
    learner = logprobs(model) - before

    def share(weights: Mapping[str, torch.Tensor]) -> float:
        """Return how far log-probs move along the learner's move."""
        sampler.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        return float((learner * (logprobs(sampler) - before)).sum() / learner.square().sum())

    assert 0.95 < share(dict(merged_weights(model, dtype=torch.bfloat16))) < 1.05
    assert share({name: tensor.bfloat16() for name, tensor in merged_weights(model)}) < 0.1  # rounded to nearest


def test_several_active_adapters_are_added_together() -> None:
    peft = pytest.importorskip("peft")
    model = adapted(llama(), 2)
    model.add_adapter("other", peft.LoraConfig(r=3, target_modules=["q_proj"]))
    train_adapters(model, seed=0)
    model.base_model.set_adapter(["default", "other"])
    plain = llama()
    plain.load_state_dict(dict(merged_weights(model)))
    assert torch.allclose(raw_logprobs(plain, range(3, 40)), raw_logprobs(model.eval(), range(3, 40)), atol=1e-5)


def test_an_adapter_that_adds_more_than_a_product_is_refused() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj"], use_dora=True))
    with pytest.raises(InvalidInput, match=r"adapter must be plain LoRA, W \+ B A, without DoRA or biases, got Dora"):
        merged_weights(model)


def test_base_state_changes_with_the_base_and_not_with_the_adapters() -> None:
    model = adapted(llama())
    before = AdaptedWeights(model).base_state
    train_adapters(model, seed=0)
    assert AdaptedWeights(model).base_state == before
    with torch.no_grad():
        model.get_base_model().model.norm.weight.mul_(1.0)
    assert AdaptedWeights(model).base_state != before
