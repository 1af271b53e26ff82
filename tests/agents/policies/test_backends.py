"""The factory of policies: what each backend is given, and what can train."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.agents.models.loading import load, load_frozen_model
from envgym.agents.policies.backends import autocast_dtype, build_policy, build_trained_policy
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.errors import SettingsError, UnknownName

TINY = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 64}
MODEL = ModelSettings.model_validate({"tiny": TINY, "train_steps": 3})
ENDPOINT = {"base_url": "http://localhost:1/v1", "model": "m"}
BACKEND = Path(__file__).resolve().parents[3] / "examples" / "plugins" / "continuous_batching.py"


def engine(backend: Any, **settings: Any) -> EngineSettings:
    return EngineSettings.model_validate({"backend": backend, "device": "cpu", **settings})


def test_a_loaded_model_samples_as_the_version_that_made_it() -> None:
    policy = build_policy(MODEL, engine("transformers"))
    assert isinstance(policy, TransformersPolicy)
    assert (policy.unit, policy.shares_weights, policy.version) == ("tokens", False, 3)


def test_a_learners_module_is_shared() -> None:
    module = load_frozen_model(MODEL, torch.device("cpu"))
    policy = build_trained_policy(MODEL, engine("transformers"), learner_model=module, deterministic=True)
    assert policy.shares_weights
    with pytest.raises(AssertionError), policy.pause():
        raise AssertionError


@pytest.mark.parametrize("backend", ["vllm_server", "openai"])
def test_what_is_served_elsewhere_cannot_train(backend: str) -> None:
    served = engine(backend, endpoint=ENDPOINT)
    assert build_policy(MODEL, served).unit == ("messages" if backend == "openai" else "tokens")
    with pytest.raises(SettingsError, match=f"weights that training can change, got {backend} "):
        build_trained_policy(MODEL, served, learner_model=None, deterministic=True)
    with pytest.raises(SettingsError, match=f"engine.endpoint must be set for {backend}, got nothing"):
        build_policy(MODEL, engine(backend))


def test_an_unknown_backend_lists_near_names() -> None:
    with pytest.raises(UnknownName, match="did you mean vllm"):
        build_policy(MODEL, engine("vlm"))


def test_a_backend_of_ones_own_is_a_file_with_its_settings() -> None:
    policy = build_policy(MODEL, engine({"name": f"{BACKEND}:ContinuousBackend", "max_batch": 16}))
    assert isinstance(policy, TransformersPolicy)
    assert policy.version == 3
    with pytest.raises(SettingsError, match=r"settings key must be known, got max_bach .*did you mean max_batch"):
        build_policy(MODEL, engine({"name": f"{BACKEND}:ContinuousBackend", "max_bach": 16}))


@pytest.mark.parametrize(
    "precision, device, of_learner, of_samplers, products",
    [
        ("auto", "cpu", "float32", "float32", None),
        ("auto", "cuda", "float32", "bfloat16", torch.bfloat16),
        ("float32", "cuda", "float32", "float32", None),
        ("mixed", "cpu", "float32", "bfloat16", torch.bfloat16),
        ("bfloat16", "cuda", "bfloat16", "bfloat16", None),
    ],
)
def test_precision_gives_the_number_types(
    precision: str, device: str, of_learner: str, of_samplers: str, products: torch.dtype | None
) -> None:
    model = ModelSettings.model_validate({"precision": precision}).on(device)
    assert (model.dtype, model.sampler_dtype, autocast_dtype(model)) == (of_learner, of_samplers, products)
    assert model.on("cpu") == model.on("cuda") == model


def test_a_mixed_model_samples_as_it_learns_and_by_itself_in_bfloat16() -> None:
    model = MODEL.model_copy(update={"precision": "mixed"})
    with closing(build_policy(model, engine("transformers"))) as alone:
        assert isinstance(alone, TransformersPolicy)
        assert alone._model._autocast is None
        assert next(alone._model.module.parameters()).dtype is torch.bfloat16
    module = load("tiny", tiny=MODEL.tiny, dtype="float32").model
    learned = build_trained_policy(model, engine("transformers"), learner_model=module, deterministic=True)
    with closing(learned):
        assert isinstance(learned, TransformersPolicy)
        assert learned._model._autocast is torch.bfloat16
        assert next(learned._model.module.parameters()).dtype is torch.float32
