"""The benchmark of a GPU: its checks hold, in small on the CPU and in full on a GPU; its counts; what fails is told."""

import argparse
import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks._gpu_checks import CHECKS, assert_passes
from benchmarks._gpu_numerics import Check, uneven_rows
from benchmarks._gpu_speed import (
    measure_sampling,
    measure_training,
    measure_turns,
    model_flops,
    shaped_model,
    step_bytes,
    turn_cost,
)
from benchmarks._pages import render_gpu
from benchmarks._processes import run_until
from benchmarks.gpu import SPEED, Plan, Stage, failures, run_all, run_stage, stage_result
from benchmarks.packing import as_train_rows, rows_of
from envgym.agents.policies.engine.decode_graphs import DecodeGraphs
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.trainer.batch.rows import packed_batches, padded_batches
from envgym.trainer.learner.packing.attention import TreeMask
from tests.agents.policies.small_models import CPU_RECORDER, llama

CPU = torch.device("cpu")
PAGE = Path("docs/results/gpu.md")


@pytest.mark.parametrize("name", CHECKS)
def test_dry_run_passes_every_check(name: str) -> None:
    assert assert_passes(name, CPU, is_dry=True).checks


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available")
@pytest.mark.parametrize("name", CHECKS)
def test_every_check_passes_on_a_gpu(name: str) -> None:
    assert_passes(name, torch.device("cuda"), is_dry=False)


def test_mask_that_shows_other_branches_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_before(mask: TreeMask, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return key <= query

    monkeypatch.setattr("envgym.trainer.learner.packing.support._TOLERANCE", math.inf)  # the probe would find it, too
    monkeypatch.setattr(TreeMask, "attends", all_before)
    with pytest.raises(AssertionError, match="float32 log-probs"):
        assert_passes("packing", CPU, is_dry=True)


def test_trees_are_uneven_and_of_depth_3() -> None:
    rows = uneven_rows(0, trunk=20, turn=12)
    assert len({row[:20] for row in rows}) == 1
    assert len(rows) >= 8
    assert len({len(row) for row in rows}) > 3
    assert max(map(len, rows)) <= 20 + 3 * 12


def test_number_that_is_none_passes_no_check() -> None:
    values = (0.5, 1.0, 1.5, math.nan)
    assert [Check("gap", value, 1.0).is_passed for value in values] == [True, True, False, False]


# ---- counts ----------------------------------------------------------------------------------------------------------


def test_operations_of_a_step_are_those_counted_by_hand() -> None:
    # A layer has 64 x 64 + 2 x 64 x 32 + 64 x 64 weights for attention and 3 x 64 x 128 after it: 36,864. Two rows of
    # 16 + 96 tokens: 208 places where the prompt is shared, else 224; 192 are scored, by 211 x 64 weights of the head.
    # Pairs: 1 + ... + 112 = 6,328 a row, less 1 + ... + 16 = 136 where the prompt is shared.
    model = shaped_model("0.5B", CPU, is_dry=True)
    rows = as_train_rows(rows_of("G2-P16", 211))
    body, head = 2 * 36_864, 211 * 64
    for make, tokens, pairs in ((packed_batches, 208, 2 * 6_328 - 136), (padded_batches, 224, 2 * 6_328)):
        expected = 6 * (body * tokens + head * 192) + 12 * 2 * 64 * pairs
        assert model_flops(model, make(rows, range(2), 8192, CPU)) == expected


def test_bytes_of_a_decoding_step_are_weights_once_and_keys_and_values() -> None:
    # 13,504 of embedding and head, 73,728 in matrices, 2 x 128 in biases, 5 x 64 in norms; 2 bytes each. Keys and
    # values of a token: 2 layers x 2 heads of 16 numbers x 2 x 2 bytes = 256.
    model = shaped_model("0.5B", CPU, is_dry=True)
    assert step_bytes(model, batch=8, context=28) == 2 * (13_504 + 73_728 + 256 + 320) + 8 * 28 * 256


def test_measurements_compare_both_sides_and_every_batch() -> None:
    trained = measure_training("0.5B", CPU, 1e12, is_dry=True)
    packed, padded, mixed = (trained[way] for way in ("packed", "padded", "packed, mixed"))
    assert isinstance(packed, dict)
    assert isinstance(mixed, dict)
    assert mixed["grad_norm"] == pytest.approx(packed["grad_norm"], rel=0.05)
    assert (mixed["tokens"], mixed["tflops"]) == (packed["tokens"], packed["tflops"])
    assert isinstance(padded, dict)
    assert (packed["tokens"], padded["tokens"]) == (208, 224)
    assert packed["grad_norm"] == pytest.approx(padded["grad_norm"], rel=0.05)  # in bfloat16
    assert packed["mfu"] == pytest.approx(packed["tflops"] / packed["seconds"])  # of 10^12 a second
    sampled = measure_sampling("0.5B", CPU, 1e9, is_dry=True)["batches"]
    assert isinstance(sampled, dict)
    assert list(sampled) == ["1", "8"]
    assert all(cell["of_bound"] == pytest.approx(cell["bound_ms"] / cell["step_ms"]) for cell in sampled.values())


def test_sleep_and_wake_are_measured_by_the_gib_and_change_no_token() -> None:
    found: Any = measure_turns("0.5B", CPU, is_dry=True)
    cost = found["transformers"]
    assert found["gib"] == 2 * (13_504 + 73_728 + 256 + 320) / 2**30
    assert cost["sleep_s_per_gib"] == pytest.approx(cost["sleep_s"] / found["gib"])
    assert cost["wake_s_per_gib"] == pytest.approx(cost["wake_s"] / found["gib"])
    assert (cost["tokens_changed"], list(found["vllm"])) == (0.0, ["skipped"])
    assert failures({"turns": found}) == []
    found["checks"][0] |= {"value": 1.0, "passed": False}
    assert failures({"turns": found}) == ["turns: transformers: tokens that a sleep changed must be at most 0, got 1"]


def test_policy_that_wakes_with_other_weights_changes_tokens() -> None:
    class Forgetful(TransformersPolicy):
        def wake(self) -> None:
            super().wake()
            self.update_weights([("lm_head.weight", -self._model.module.get_parameter("lm_head.weight"))], 1)

    policy = Forgetful(llama())
    assert turn_cost(policy, CPU, 1.0)["tokens_changed"] == 1.0


# ---- stages ----------------------------------------------------------------------------------------------------------


def plan(**changes: Any) -> Plan:  # fields of Plan
    return Plan(is_dry=True, peak_tflops=790.0, deadline=time.monotonic() + 600)._replace(**changes)


@pytest.mark.slow
def test_stage_that_raises_is_told_with_its_traceback() -> None:
    found = run_stage(Stage("nonsense", 120), plan())
    assert found["error"].startswith("exit code 1\n")
    assert found["error"].rstrip().endswith("KeyError: 'nonsense'")


def test_stage_beyond_its_limit_is_stopped_with_its_children(tmp_path: Path) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {'import time; time.sleep(60)'!r}])"
    assert run_until([sys.executable, "-c", child], 0.5, output=tmp_path / "log") is None


def test_stage_without_time_left_is_skipped() -> None:
    assert run_stage(Stage("attention", 60), plan(deadline=time.monotonic()))["error"] == "skipped: no time was left"


def test_one_stage_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[Plan] = []

    def run(stage: Stage, plan: Plan) -> dict[str, Any]:
        plans.append(plan)
        if stage.name == "machine":
            return {"device": "cpu", "copy_bytes_per_s": 5.0}
        if stage.name == "packing":
            return {"error": "exit code 1\nout of memory"}
        return {"checks": [Check("gap", 2.0, 1.0).to_json()]} if stage.name == "demo" else {}

    monkeypatch.setattr(gpu, "run_stage", run)
    record = run_all(plan(is_dry=False))
    assert {*CHECKS, *(stage.name for stage in SPEED), "machine"} <= set(record)
    assert record["dry_run"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["measured"])
    assert re.fullmatch(r"[0-9a-f]{7,}|version .+", record["commit"])
    assert "CUDA is not available" in capsys.readouterr().err
    assert all(given.is_dry and given.bandwidth == 5.0 for given in plans[1:])
    assert failures(record) == ["packing: exit code 1\nout of memory", "demo: gap must be at most 1, got 2"]


def test_warning_of_a_stage_is_in_its_record_and_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(graphs: DecodeGraphs, *args: object) -> torch.Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(DecodeGraphs, "decode", decode)
    monkeypatch.setattr("envgym.agents.policies.engine.policy.RECORDERS", CPU_RECORDER)
    found = stage_result("sampling 0.5B", argparse.Namespace(dry_run=True, bandwidth=1e9, peak_tflops=1.0))
    reason = "RuntimeError: operation not permitted when stream is capturing"
    warning = f"decoding steps are not recorded and run call by call, which is slower: {reason}"
    assert [line.startswith(warning) for line in found["warnings"]] == [True]
    assert [cell["unrecorded"] for cell in found["batches"].values()] == [reason, reason]
    assert failures({"sampling 0.5B": found}) == [f"sampling 0.5B: {found['warnings'][0]}"]


# ---- the page --------------------------------------------------------------------------------------------------------


def test_page_is_that_of_the_record() -> None:
    record = PAGE.with_suffix(".json")
    found = json.loads(record.read_text(encoding="utf-8")) if record.exists() else None
    assert PAGE.read_text(encoding="utf-8") == render_gpu(found)


def test_page_shows_every_number_and_every_failure() -> None:
    side = {"seconds": 0.25, "first_s": 31.0, "tokens": 2048, "tflops": 5.9, "mfu": 0.31, "peak_gib": 4.2}
    cell = {"tokens_per_s": 6400.4, "step_ms": 10.0, "bound_ms": 2.5, "of_bound": 0.25, "peak_gib": 1.5}
    cell["engine/recorded_steps"] = 1.0
    turns = {"sleep_s": 0.3, "wake_s": 0.6, "sleep_s_per_gib": 0.1, "wake_s_per_gib": 0.2, "freed_gib": 3.0}
    machine = {"device": "NVIDIA X", "memory_gib": 141.0, "copy_bytes_per_s": 4.3e12, "product_flops": 7.9e14}
    page = render_gpu(
        {
            "machine": machine | {"torch": "2.11.0", "cuda": "13.0", "transformers": "5.17.0"},
            "attention": {
                "checks": [Check("float32 full", 3e-7, 1e-5).to_json(), Check("bfloat16 full", 0.5, 0.02).to_json()],
                "pack_lengths": [107, 186],
                "graphs": {"float32 full": [2, 3]},
            },
            "demo": {"error": "exit code 1\nRuntimeError: no kernel"},
            "training 0.5B": {"packed": side, "padded": side, "speedup": 2.0, "flop_ratio": 2.5},
            "compiled 0.5B": {"packed, compiled": side | {"seconds": 0.2}},
            "training 1.5B": {"error": "stopped after 100 s"},
            "sampling 0.5B": {
                "batches": {"64": cell},
                "call_by_call": {"64": cell | {"step_ms": 25.0}},
                "warnings": ["slow"],
            },
            "turns 1.5B": {"transformers": turns, "vllm": {"skipped": "vLLM is not installed"}},
        }
    )
    for line in (
        "**Answer.** NVIDIA X, 141 GiB, copies at 4.30 TB/s, products in bfloat16 at 790 TFLOP/s, torch 2.11.0 "
        "(CUDA 13.0), transformers 5.17.0: 4 of the stages failed or are beyond a bound",
        "| attention | float32 full | 3e-07 | 1e-05 | yes |",
        "| attention | bfloat16 full | 0.5 | 0.02 | **no** |",
        "| float32 full | 2, 3 |",
        "| demo | failed, see below |",
        "| 0.5B | packed | 0.250 | 2,048 | 5.9 | 31.0% | 4.2 | 31.0 |",
        "2.00 times as fast, of 2.50 counted",
        "| 0.5B | packed, compiled | 0.200 | 2,048 |",
        "| 1.5B | failed, see below |",
        "| 0.5B | 64 | 6,400 | 10.00 | 25.00 | 2.50 | 25% | 1.5 | 100% |",
        "| transformers | 3.0 | 0.30 | 0.60 | 0.100 | 0.200 |",
        "| vllm | vLLM is not installed |",
        "RuntimeError: no kernel",
        "sampling 0.5B:\n\n```text\nslow",
    ):
        assert line in page
