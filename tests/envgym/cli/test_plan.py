"""`envgym plan`: what it prints, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Command = Callable[..., tuple[int, str, str]]

FILE: dict[str, Any] = {
    "envs": [{"id": "math/arithmetic-v0"}],
    "rollout": {"groups": 2, "group_size": 4},
    "optim": {"micro_batch_tokens": 2048},
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(FILE))
    return str(path)


def test_json_has_times_memory_and_sources(config: str, command: Command) -> None:
    code, shown, _ = command(
        "plan", config, "--gpus", "1", "--gpu", "h200", "--turns", "3", "--reply-tokens", "10", "--json"
    )
    plan = json.loads(shown)
    seconds, memory = plan["seconds"], plan["memory_bytes"]["learner"]
    assert code == 0
    parts = [seconds[name] for name in ("sampling", "control", "learning", "update", "checks")]
    assert min(parts) >= 0
    assert seconds["step"] == pytest.approx(sum(parts))  # a deterministic rollout without vLLM
    assert memory["total"] == sum(size for part, size in memory.items() if part != "total")
    assert memory["optimizer"] == 2 * memory["gradients"] == 2 * memory["weights"]
    assert plan["context"] == 512 + 3 * 128 + 2 * 10
    assert plan["bottleneck"] == "sampling"
    assert any("benchmarks/gpu.py" in line for line in plan["sources"]["device"])


def test_text_names_the_parts_and_a_faster_split(config: str, command: Command) -> None:
    options = ("--set", "launch.servers=1", "--set", "launch.server_engine=vllm", "--set", "launch.transport=nccl")
    code, shown, _ = command("plan", config, "--gpus", "4", *options)
    assert code == 0
    assert "4 x h200: 1 learner ranks, 1 policy servers, 2 without work" in shown
    assert "(bottleneck)" in shown
    assert shown.count("GiB") >= 6


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("--gpus", "0"), "--gpus must be at least 1, got 0"),
        (("--gpus", "1", "--gpu", "h20"), "device must be a known name, got 'h20' (--gpu); did you mean h200"),
        (("--gpus", "1", "--turns", "0"), "--turns must be at least 1, got 0"),
        (("--gpus", "1", "--set", "launch.learners=2"), "devices of learners and servers must be at most 1, got 2"),
        (
            ("--gpus", "1", "--turns", "9"),
            "tokens of an episode must be at most agent.max_context_tokens, which is 2048",
        ),
        (
            ("--gpus", "1", "--turn-tokens", "300"),
            "tokens of a turn must be at most agent.max_turn_tokens, which is 256, got 300 (envgym plan); lower",
        ),
        (
            ("--gpus", "1", "--set", "engine.backend={name: policy_servers, servers: [127.0.0.1:1]}"),
            "engine.backend must be transformers or vllm, got policy_servers (envgym plan); plan with",
        ),
        (
            ("--gpus", "1", "--set", "engine.backend=vllm", "--set", "engine.vllm={gpu_memory_utilization: 0.5}"),
            "engine.vllm.gpu_memory_utilization must be left out, got 0.5 (envgym plan); plan with engine.cache_gib",
        ),
        (("--gpus", "1", "--size", "32B"), "memory of a learner rank must fit 125.1 GiB"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    words: tuple[str, ...], sentence: str, config: str, command: Command
) -> None:
    code, shown, error = command("plan", config, *words)
    assert (code, shown) == (2, "")
    assert sentence in error
    assert "\n" not in error.strip()


def test_parts_that_are_not_counted_are_named(config: str, command: Command) -> None:
    options = (
        "--gpus",
        "1",
        "--set",
        "credit=gae_token",
        "--set",
        "filter=keep_all",
        "--set",
        "models.judge={kind: snapshot}",
    )
    _, shown, _ = command("plan", config, *options)
    assert "not counted  critic, models.judge\n" in shown
    _, shown, _ = command("plan", config, *options, "--json")
    assert json.loads(shown)["not_counted"] == ["critic", "models.judge"]
    _, shown, _ = command("plan", config, "--gpus", "1")
    assert "not counted" not in shown
