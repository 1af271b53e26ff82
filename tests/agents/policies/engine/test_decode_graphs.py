"""Decoding steps from recordings: the numbers of steps that run call by call; recordings of what is in place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from envgym.agents.policies.engine import decode_graphs as _decode_graphs
from envgym.agents.policies.engine.cached_model import RECORDERS, CachedModel
from envgym.agents.policies.engine.decode_graphs import rounded_columns, rounded_rows
from envgym.agents.policies.engine.policy import TransformersPolicy
from tests.agents.policies.small_models import CPU_RECORDER, Recorders, generate, llama, models, request

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available")],
    ),
]
CONTEXTS = ((3, 4, 5, 6, 7), (8, 9, 10), (11, 12, 13, 14))
LONG = tuple(number % 97 for number in range(150))


class CountedRecorder:
    """Does what a recording would do, and counts recordings and what runs from them."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


def steps(model: CachedModel, rows: int = 3, *, count: int = 4) -> list[Tensor]:
    """Return the logits of some steps of the first rows, after contexts in all of three rows."""
    device = model.device
    lengths = torch.tensor([len(context) for context in CONTEXTS], device=device)[:rows]
    tokens = torch.tensor([20, 21, 22], device=device)[:rows]
    with model.serving():
        model.cache.reserve(rows=3, columns=8)
        model.prefill(CONTEXTS, [0, 0, 0], 0)
        found: list[Tensor] = []
        for step in range(count):
            width = int(lengths.max()) + step + 1
            model.cache.reserve(rows=rows, columns=width)
            found.append(model.decode(tokens + step, lengths + step, width).clone())
        return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama", "qwen2, mixed layers", "qwen3"])
def test_recorded_steps_give_the_numbers_of_steps_call_by_call(family: str, device: str) -> None:
    model = models()[family]().eval().to(device)
    recorders = RECORDERS if device == "cuda" else CPU_RECORDER
    recorded = CachedModel(model, recorders=recorders)
    for mine, plain in zip(steps(recorded), steps(CachedModel(model, recorders={})), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5)
    assert recorded._graphs is not None


def test_steps_of_as_many_rows_and_columns_run_from_one_recording() -> None:
    recorder = CountedRecorder()
    model = CachedModel(llama().eval(), recorders={"cpu": lambda device: recorder})
    steps(model)
    steps(model)
    assert (recorder.recorded, recorder.replayed) == (1, 8)
    steps(model, rows=2)
    assert (recorder.recorded, recorder.replayed) == (2, 12)
    assert (model.steps.count, model.steps.num_recorded, model.steps.num_recordings) == (12, 12, 2)


def test_rows_that_nobody_uses_keep_what_they_hold() -> None:
    # Two of three rows decode as two; one of three, and then five as eight, with a kept context in the third.
    model = CachedModel(llama().eval(), recorders=CPU_RECORDER)
    with model.serving():
        model.cache.reserve(rows=3, columns=200)
        model.prefill([*CONTEXTS[:2], LONG], [0, 0, 0], 0)
        layer = next(model.cache._slots())
        kept = layer.keys[2, :, :150].clone()
        for rows in (1, 2):
            model.decode(torch.tensor([20, 21])[:rows], torch.tensor([5, 3])[:rows], 6)
        model.cache.reserve(rows=4, columns=200)
        model.decode(torch.tensor([20, 21, 22]), torch.tensor([5, 3, 150]), 151)
        assert torch.equal(next(model.cache._slots()).keys[2, :, :150], kept)
        # the third leaves; the first two and a new one decode as four, whose last row holds what left
        model.prefill([LONG], [0], 3)
        kept = next(model.cache._slots()).keys[3, :, :150].clone()
        model.decode(torch.tensor([20, 21, 22]), torch.tensor([6, 4, 4]), 7)
        assert torch.equal(next(model.cache._slots()).keys[3, :, :150], kept)


def test_recordings_are_dropped_when_the_cache_or_the_weights_move() -> None:
    recorder = CountedRecorder()
    module = llama().eval()
    model = CachedModel(module, recorders={"cpu": lambda device: recorder})
    steps(model)
    with model.serving():
        model.cache.reserve(rows=16, columns=500)
    steps(model)
    assert recorder.recorded == 2, "the cache lies elsewhere"
    model.forget_weights()
    steps(model)
    assert recorder.recorded == 2, "weights that changed in place are read from where they were"
    for parameter in module.parameters():
        parameter.data = parameter.data.clone() + 0.01
    model.forget_weights()
    found = steps(model)
    assert recorder.recorded == 3
    for mine, plain in zip(found, steps(CachedModel(module, recorders={})), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5)
    model.forget()
    steps(model)
    assert recorder.recorded == 4, "the cache is another"


def test_recording_used_longest_ago_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_decode_graphs, "_MAX_RECORDINGS", 2)
    recorder = CountedRecorder()
    model = CachedModel(llama().eval(), recorders={"cpu": lambda device: recorder})
    with model.serving():
        model.cache.reserve(rows=4, columns=8)
    for rows in (1, 2, 1, 3, 1):
        steps(model, rows)
    assert recorder.recorded == 3
    steps(model, 2)
    assert recorder.recorded == 4


def test_device_that_cannot_record_decodes_call_by_call(caplog: pytest.LogCaptureFixture) -> None:
    def failing(work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")

    recorders: Recorders = {"cpu": lambda device: failing}
    model = CachedModel(llama().eval(), recorders=recorders)
    for mine, plain in zip(steps(model), steps(CachedModel(llama().eval(), recorders={})), strict=True):
        assert torch.equal(mine, plain)
    assert [record.message for record in caplog.records] == [
        "decoding steps are not recorded and run call by call, which is slower: "
        "RuntimeError: operation not permitted when stream is capturing"
    ]
    assert (model.steps.count, model.steps.num_recorded) == (4, 0)


@pytest.mark.parametrize(
    "family, reason",
    [
        ("eager", "the forward pass of LlamaForCausalLM is that of its modules, as its attention is eager"),
        (
            "gemma3, mixed layers",
            "the forward pass of Gemma3ForCausalLM is that of its modules, as its modules are not those of a Llama",
        ),
    ],
)
def test_model_whose_steps_cannot_be_recorded_says_so_once(
    family: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = CachedModel(models()[family]().eval(), recorders=CPU_RECORDER)
    steps(model)
    steps(model)
    assert [record.message for record in caplog.records] == [
        f"decoding steps are not recorded and run call by call, which is slower: {reason}"
    ]
    assert (model.steps.count, model.steps.num_recorded, model.steps.reason) == (8, 0, reason)


def test_mixed_precision_is_no_reason_for_a_warning_as_it_is_the_default_on_a_gpu(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = CachedModel(llama().eval(), autocast=torch.bfloat16, recorders=CPU_RECORDER)
    steps(model)
    assert caplog.records == []
    reason = "autocast casts weights in every step, and what it has cast cannot be recorded"
    assert (model.steps.count, model.steps.num_recorded, model.steps.reason) == (4, 0, reason)


def test_short_form_that_computes_something_else_is_not_used_and_says_how_far_it_is() -> None:
    class Doubled(LlamaForCausalLM):
        def forward(self, *args: Any, **options: Any) -> Any:  # passed on
            output = super().forward(*args, **options)
            output.logits = 2 * output.logits
            return output

    module: Any = Doubled  # transformers leaves its class untyped
    model = CachedModel(module(llama().config).eval(), recorders=CPU_RECORDER)
    steps(model)
    # |x - 2 x| / |2 x| = 0.5
    assert model.steps.reason == (
        "the forward pass of Doubled is that of its modules, as the short form of it differs: "
        "its logits are 0.5 of their size apart, and may be 0.0001"
    )


def test_policy_states_the_share_of_steps_that_ran_from_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.agents.policies.engine.policy.RECORDERS", CPU_RECORDER)
    policy = TransformersPolicy(llama())
    generate(policy, [request(CONTEXTS[0])])
    assert policy.take_metrics() == {"engine/recorded_steps": 1.0, "engine/recordings": 1.0}
    assert policy.take_metrics() == {}
    assert policy.unrecorded is None
    monkeypatch.setattr("envgym.agents.policies.engine.policy.RECORDERS", {})
    plain = TransformersPolicy(llama())
    generate(plain, [request(CONTEXTS[0])])
    assert plain.take_metrics() == {}


def test_rounding_wastes_at_most_an_eighth_of_the_columns() -> None:
    assert [rounded_rows(count) for count in (1, 2, 3, 4, 5, 64, 65)] == [1, 2, 4, 4, 8, 64, 128]
    assert [rounded_columns(count) for count in (1, 128, 129, 1024, 1025, 2049)] == [128, 128, 256, 1024, 1152, 2304]
    assert all(count <= rounded_columns(count) <= max(128, 1.125 * count + 1) for count in range(1000, 9000, 7))
