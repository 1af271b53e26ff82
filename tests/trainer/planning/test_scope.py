"""What a dry run plans for each device, and what it leaves out in one line."""

from pathlib import Path

import pytest
from transformers import Phi3Config

from envgym.agents.settings import ModelSettings
from envgym.errors import InvalidInput
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.method import build_method
from envgym.trainer.planning.scope import planned_memory
from envgym.trainer.planning.shapes import model_shape
from tests.support.credit_trees import chain
from tests.support.toy_plan import GIB, settings_of

TREES = (chain("a", [0.0, 1.0]),)


@pytest.fixture
def longrope(tmp_path: Path) -> str:
    """Return the folder of a model whose rotary factors fit its own heads of width 32 and no other."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "factor": 2.0,
        "short_factor": [1.0] * 16,
        "long_factor": [1.0] * 16,
        "original_max_position_embeddings": 128,
    }
    Phi3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        rope_parameters=rope,
    ).save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_model_that_cannot_be_probed_is_refused(longrope: str) -> None:
    settings = ModelSettings(name=longrope, precision="float32")
    refused = r"^model of a plan must build and run with heads of width 8, got The size of tensor.* \(phi3\); plan a"
    with pytest.raises(InvalidInput, match=refused):
        model_shape(settings, OptimSettings(), size=None, has_reference=False)


def test_a_dry_run_of_such_a_model_has_no_planned_memory(longrope: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_of(model={"name": longrope, "precision": "float32"})
    assert planned_memory(settings, build_method(settings).objective, "cpu", TREES) == {}
    (line,) = caplog.messages
    assert line.startswith("the planned memory of each device is left out: model of a plan must build and run")


def test_a_colocated_engine_has_the_device_in_turns_with_the_learner() -> None:
    """While the engine samples, its weights and cache are on the device, and weights and optimizer of the learner."""
    engine = {"backend": {"name": "vllm"}, "device": "cuda", "colocate": True, "cache_gib": 3}
    settings = settings_of(engine=engine, correction={"name": "tis"}, model={"precision": "mixed"})
    shape = model_shape(settings.model, settings.optim, size=None, has_reference=False)
    memory = planned_memory(settings, build_method(settings).objective, "cuda", TREES)
    assert list(memory) == ["learner", "in turns"]
    assert memory["in turns"] == 3 * GIB + shape.weights + shape.state.weights + shape.state.optimizer
    assert shape.state.total < memory["learner"] < 3 * GIB, "the engine's memory is free while the learner trains"
