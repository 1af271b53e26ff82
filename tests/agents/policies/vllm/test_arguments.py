"""Arguments of vLLM's engine that pass through: which ones are refused, and models that cannot be split."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from envgym.agents.models.loading import resolve_model
from envgym.agents.policies.vllm.arguments import check_names, check_split
from envgym.agents.policies.vllm.engine import VllmLaunchSettings, engine_arguments
from envgym.agents.policies.vllm.policy import VllmPolicy
from envgym.agents.settings import OWNED_ARGUMENTS, EngineSettings, EvalSettings, ModelSettings
from envgym.config.settings import build_settings
from envgym.errors import InvalidInput, SettingsError, UnknownName
from tests.agents.policies.small_models import llama
from tests.support.tiny_runs import tiny_settings


def engine(**section: Any) -> EngineSettings:
    return build_settings(EngineSettings, {"backend": "vllm", **section}, where="test")


@pytest.mark.parametrize("name", OWNED_ARGUMENTS)
def test_arguments_that_envgym_sets_are_refused_with_what_to_do_instead(name: str) -> None:
    with pytest.raises(SettingsError) as refused:
        engine(vllm={name: 1})
    sentence = f"argument of vLLM must be none that envgym sets, got {name} (engine.vllm); {OWNED_ARGUMENTS[name]}."
    assert sentence in str(refused.value)


def test_what_to_do_instead_names_settings_that_there_are() -> None:
    words = " ".join(OWNED_ARGUMENTS.values()).replace(",", "").split()
    names = {word.removeprefix("engine.") for word in words if word.startswith("engine.")}
    assert names == {"cache_gib", "max_batch", "max_context", "tensor_parallel"}
    assert names <= EngineSettings.model_fields.keys()
    of_model = {word.removeprefix("model.") for word in words if word.startswith("model.")}
    assert of_model == {"name", "tokenizer", "precision", "head_dtype"}
    assert of_model <= ModelSettings.model_fields.keys()


def test_cache_is_a_number_of_bytes_or_a_share_but_not_both() -> None:
    share = {"gpu_memory_utilization": 0.5}
    assert engine(vllm=share).cache_gib == 2
    with pytest.raises(SettingsError, match=r"engine.cache_gib must be left at 2.0 where .*gpu_memory_utilization"):
        engine(vllm=share, cache_gib=3)


@pytest.mark.parametrize("section", [{"tensor_parallel": 2}, {"vllm": {"block_size": 16}}])
def test_settings_of_vllm_are_refused_where_another_engine_samples(section: dict[str, Any]) -> None:
    def settings(backend: str) -> EvalSettings:
        data = {"envs": [{"id": "math/arithmetic-v0"}], "engine": {"backend": backend, **section}}
        return build_settings(EvalSettings, data, where="test")

    with pytest.raises(SettingsError, match=r"engine.(tensor_parallel|vllm) must be left at .* set engine.back"):
        settings("transformers")
    settings("vllm")


def test_model_is_split_by_whole_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    config = llama(num_attention_heads=12, num_key_value_heads=4, hidden_size=48).config
    for size in (1, 2, 4, 12):  # 12 workers have each of 4 key-value heads three times
        check_split(config, size, where="test")
    with pytest.raises(InvalidInput, match=r"tensor_parallel must divide the model's 12 attention heads, got 5"):
        check_split(config, 5, where="test")
    with pytest.raises(InvalidInput, match=r"divide the model's 4 key-value heads, or be a multiple of them, got 6"):
        check_split(config, 6, where="test")


def test_model_is_split_over_devices_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_attention_heads=8))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    with pytest.raises(InvalidInput, match=r"engine.tensor_parallel must be at most 4, the number of CPUs, got 8"):
        check_split(config, 8, where="test")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InvalidInput, match=r"engine.tensor_parallel must be at most 1, the number of GPUs, got 2"):
        check_split(config, 2, where="test")


def test_quantization_is_refused_for_policy_servers_and_passes_to_an_engine_in_the_process(tmp_path: Path) -> None:
    quantized = {"vllm": {"quantization": "fp8"}}
    engine(**quantized)
    with pytest.raises(SettingsError, match=r"engine.vllm must have no quantization for a policy server.* got fp8"):
        tiny_settings(tmp_path, engine=quantized, launch={"servers": 1, "server_engine": "vllm"})


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parts, is_refused", [(["qkv_proj"], True), (["q_proj", "k_proj", "v_proj"], False)])
def test_split_model_whose_checkpoint_fuses_weights_is_refused(parts: list[str], is_refused: bool) -> None:
    from vllm.model_executor.layers.linear import QKVParallelLinear

    from envgym.agents.policies.vllm.serve_worker import check_joinable

    layer: Any = QKVParallelLinear.__new__(QKVParallelLinear)
    torch.nn.Module.__init__(layer)
    model: Any = torch.nn.ModuleDict({"attention": torch.nn.ModuleDict({"qkv_proj": layer})})
    model.packed_modules_mapping = {"qkv_proj": parts}
    if is_refused:
        with pytest.raises(InvalidInput, match=r"keep fused weights apart .* got attention.qkv_proj .*parallel=1"):
            check_joinable(model)
    else:
        check_joinable(model)


@pytest.mark.vllm
def test_unknown_arguments_are_refused_with_near_names() -> None:
    check_names({"block_size": 16, "speculative_config": {}}, where="engine.vllm")
    with pytest.raises(UnknownName, match=r"argument of vLLM must be a known name, got 'max_num_seq'.*max_num_seqs"):
        check_names({"max_num_seq": 16}, where="engine.vllm")
    with pytest.raises(UnknownName, match=r"got 'quantisation' \(engine.vllm\); did you mean quantization"):
        VllmPolicy(resolve_model("tiny"), arguments={"quantisation": "fp8"})


@pytest.mark.vllm
def test_arguments_of_the_user_come_last_except_for_what_cannot_work() -> None:
    def arguments(**own: Any) -> dict[str, Any]:
        launch = VllmLaunchSettings(
            source="tiny",
            dtype="float32",
            head_dtype="same",
            max_tokens=100,
            max_batch=3,
            cache_bytes=1 << 20,
            threads=1,
            restarts=0,
            tensor_parallel=2,
            arguments=own,
        )
        return engine_arguments(launch)

    found = arguments(block_size=64, enable_prefix_caching=False)
    names = ("block_size", "enable_prefix_caching", "max_num_seqs", "kv_cache_memory_bytes", "tensor_parallel_size")
    assert [found[name] for name in names] == [64, False, 3, 1 << 20, 2]
    assert found["distributed_executor_backend"] == "mp", "workers are processes of this machine"
    assert arguments(gpu_memory_utilization=0.5)["kv_cache_memory_bytes"] is None
    with pytest.raises(SettingsError, match="enable_chunked_prefill must be false on a CPU"):
        arguments(enable_chunked_prefill=True)
