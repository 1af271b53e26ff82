"""Seconds per GB of a weight update, for both engines.

Run: .venv-vllm/bin/python benchmarks/weight_update.py [--models smollm2 tiny] [--repeats 5]. Prints one JSON line.
Without vLLM in the interpreter the transformers policy alone is measured. Ways: `shared`, as training does it: the
policy samples from the learner's own module, no weight is moved, and what is left is to forget the prefixes; `copied`,
the weights of another module are copied into the policy's; `vllm`, all weights are written to a file in memory (phase
`stage`), and vLLM's process loads it (`load`). A GB is 10^9 bytes of weights in the engine's dtype, tied ones once.
Every update is checked: the log-probs of a probe move as far as the learner's.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from typing import Any, Final, NamedTuple

import torch

from benchmarks._clock import timed
from envgym.agents.models.loading import load, resolve_model
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies._vllm_worker import WeightStaging
from envgym.agents.policies.transformers import TransformersPolicy
from envgym.agents.policies.vllm import VllmPolicy
from envgym.agents.protocols import Policy

WAYS: Final = ("shared", "copied", "vllm")
PROBE: Final = tuple(range(40, 60))
CHANGE: Final = 0.9
"""Every matrix is multiplied by this before an update, so that log-probs move."""


class Update(NamedTuple):
    """One update."""

    seconds: float
    stage_s: float
    """Of these: writing the file that vLLM loads."""


def gigabytes(model: Any) -> float:  # PreTrainedModel
    """Return the size of a model's weights."""
    num_bytes: int = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return num_bytes / 1e9


def change(model: Any) -> None:  # PreTrainedModel
    """Change every matrix."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(CHANGE)


def update(policy: Policy, learner: Any, way: str, version: int) -> Update:  # PreTrainedModel
    """Give the policy the learner's weights."""
    with timed(WeightStaging, {"write": "stage"}) as spent:
        started = time.perf_counter()
        if policy.shares_weights:
            policy.set_version(version)
        else:
            policy.update_weights(merged_weights(learner), version)
        return Update(time.perf_counter() - started, spent["stage"])


def probe(policy: Policy) -> float:
    """Return the log-prob of the probe."""
    return sum(asyncio.run(policy.compute_logprobs([PROBE]))[0])


def start(model: str, way: str, learner: Any, options: argparse.Namespace) -> Policy:  # PreTrainedModel
    """Start the engine of a way."""
    if way == "shared":
        return TransformersPolicy(learner, shares_weights=True)
    if way == "copied":
        return TransformersPolicy(load(model, dtype=options.dtype).model)
    source = resolve_model(model)
    return VllmPolicy(source, dtype=options.dtype, cache_gib=0.5, max_context=512, threads=options.threads)


def measure(model: str, way: str, options: argparse.Namespace) -> dict[str, object]:
    """Update the policy again and again."""
    learner = load(model, dtype=options.dtype).model
    policy = start(model, way, learner, options)
    try:
        updates: list[Update] = []
        before = probe(policy)
        for version in range(1, options.repeats + 2):
            change(learner)
            updates.append(update(policy, learner, way, version))
            after = probe(policy)
            assert abs(after - before) > 1e-3, "new weights give other log-probs"
            before = after
        expected = probe(TransformersPolicy(learner))
        assert abs(before - expected) < options.tolerance, f"the engine has {before}, the learner {expected}"
    finally:
        if isinstance(policy, VllmPolicy):
            policy.close()
    return summary(updates[1:], gigabytes(learner))


def summary(updates: list[Update], size: float) -> dict[str, object]:
    """Return medians; the first update is not among them, as it loads and allocates."""
    seconds = statistics.median(one.seconds for one in updates)
    stage = statistics.median(one.stage_s for one in updates)
    return {
        "seconds": round(seconds, 5),
        "seconds_per_gb": round(seconds / size, 4),
        "gb": round(size, 4),
        **({"phases": {"stage": round(stage, 4), "load": round(seconds - stage, 4)}} if stage else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2", "tiny"])
    parser.add_argument("--ways", nargs="+", default=None, choices=WAYS, help="default: all that are installed")
    parser.add_argument("--dtype", default="float32", choices=("bfloat16", "float32"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tolerance", type=float, default=1.0, help="largest gap of the probe's log-prob, in nats")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    has_vllm = importlib.util.find_spec("vllm") is not None
    ways = options.ways or [way for way in WAYS if way != "vllm" or has_vllm]
    models: dict[str, object] = {}
    load_before = os.getloadavg()[0]
    for model in options.models:
        models[model] = {way: measure(model, way, options) for way in ways}
        print(f"{model}: {models[model]}", file=sys.stderr)
    settings = {"dtype": options.dtype, "repeats": options.repeats, "threads": options.threads}
    loads = [round(load_before, 1), round(os.getloadavg()[0], 1)]
    where = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps({"benchmark": "weight_update", **settings, "models": models, "load": loads, **where}))


if __name__ == "__main__":
    main()
