"""The memory of a model that is not loaded is that of the model when it is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from envgym.agents.policies.backends import autocast_dtype
from envgym.agents.settings import ModelSettings
from envgym.errors import InvalidInput, UnknownName
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.memory import micro_batch_memory, state_memory
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.models.policy_model import load_model
from envgym.trainer.planning.shapes import model_shape

FLOAT32 = ModelSettings(precision="float32")
CASES: dict[str, dict[str, Any]] = {
    "whole": {},
    "mixed": {"precision": "mixed"},
    "bfloat16": {"precision": "bfloat16"},
    "checkpointing": {"gradient_checkpointing": True, "tiny": {"num_layers": 6}},
    "adapters": {"lora": {"rank": 4}},
    "adapters, mixed": {"lora": {"rank": 4}, "precision": "mixed", "tiny": {"num_layers": 4}},
}


@pytest.mark.parametrize("case", CASES)
def test_state_is_exact_and_activations_are_near(case: str) -> None:
    settings = ModelSettings(**{"precision": "float32", **CASES[case]})
    shape = model_shape(settings, OptimSettings(), size=None, has_reference=True, device_type="cpu")
    model, _ = load_model(settings, torch.device("cpu"), None)
    forward = ForwardPass(model, OptimSettings(), device=torch.device("cpu"), autocast=autocast_dtype(settings))
    measured = micro_batch_memory(forward)
    assert shape.state == state_memory(model, OptimSettings(), reference=True)
    assert shape.micro_batch.head == measured.head
    for tokens in (256, 8192):
        assert shape.micro_batch.of(tokens) == pytest.approx(measured.of(tokens), rel=0.1)


def test_a_size_of_qwen_has_the_parameters_of_its_name() -> None:
    shape = model_shape(ModelSettings(precision="mixed"), OptimSettings(), size="0.5B", has_reference=False)
    assert shape.weights == 2 * 494_032_768  # as its card states, embeddings once
    assert shape.cached == 2 * 24 * 2 * 64
    with pytest.raises(UnknownName, match="size must be a known name, got '8B'"):
        model_shape(FLOAT32, OptimSettings(), size="8B", has_reference=False)


def test_adapters_are_what_updates_move_and_no_reference_of_ranks() -> None:
    settings = ModelSettings.model_validate({"precision": "float32", "lora": {"rank": 4}})
    shape = model_shape(settings, OptimSettings(), size=None, has_reference=True, device_type="cpu")
    assert shape.sent == shape.adapters == shape.state.gradients > 0
    assert shape.sharded_reference == shape.weights == 4 * (shape.body + shape.outside)
    whole = model_shape(FLOAT32, OptimSettings(), size=None, has_reference=True, device_type="cpu")
    assert (whole.sent, whole.sharded_reference, whole.adapters) == (whole.weights, 0, 0)


@pytest.mark.parametrize("kind, got", [("gpt2", "no num_key_value_heads"), ("qwen3_moe", "num_experts")])
def test_models_of_another_kind_are_refused(kind: str, got: str, tmp_path: Path) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    settings = ModelSettings(name=str(tmp_path), precision="float32")
    with pytest.raises(InvalidInput, match=f"must have num_key_value_heads and no experts, got '?{got}'? .{kind}."):
        model_shape(settings, OptimSettings(), size=None, has_reference=False)
