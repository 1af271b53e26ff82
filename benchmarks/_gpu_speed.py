"""What `benchmarks/gpu.py` measures on a device: steps and sampling at the shapes of Qwen2.5, random weights.

Times are wall times of work that has ended on the device. With `is_dry` everything is small enough for a CPU.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from benchmarks._gpu_numerics import Check
from benchmarks.packing import as_train_rows, rows_of
from envgym.agents.models.loading import free_memory
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.vllm.serve_start import is_usable
from envgym.agents.protocols import GenerateRequest, Policy, Sampling
from envgym.trainer.batch.rows import MicroBatch
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.memory import measure_memory
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import PpoClip

SHAPES: Final[dict[str, dict[str, Any]]] = {  # settings of Qwen2Config
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
}
"""Of Qwen2.5; both have 2 heads of keys, 151,936 tokens, and one matrix for embedding and head."""
DRY: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 211,
}
CELL: Final = "G16-P512"
GROUPS: Final = 8
"""Such cells that a train step learns from, with prompts of their own."""
BATCHES: Final = (1, 8, 64)
CONTEXT: Final = 512
REPEATS: Final = 3
GIB: Final = 2**30


def shaped_model(name: str, device: torch.device, is_dry: bool) -> PreTrainedModel:
    """Return a model of random weights in bfloat16, made on the device."""
    shape = {"vocab_size": 151_936, **(DRY if is_dry else SHAPES[name])}
    torch.manual_seed(0)
    config = Qwen2Config(num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=4096, **shape)
    with torch.device(device):
        model: PreTrainedModel = Qwen2ForCausalLM(config)
    nn.Module.to(model, dtype=torch.bfloat16)
    return model


def wait(device: torch.device) -> None:
    """Return when all work on the device has ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that `work` takes on the device."""
    wait(device)
    started = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - started


# ---- the machine -----------------------------------------------------------------------------------------------------


def copy_bandwidth(device: torch.device, is_dry: bool) -> float:
    """Return the bytes per second, read and written, of copying from device memory to device memory."""
    source = torch.zeros((1 << 20) if is_dry else (1 << 31), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.numel() / min(timed(lambda: target.copy_(source), device) for _ in range(5))


def matmul_flops(device: torch.device, is_dry: bool) -> float:
    """Return the floating-point operations per second of a large product in bfloat16."""
    size = 256 if is_dry else 8192
    left, right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    left @ right
    return 2 * size**3 / min(timed(lambda: left @ right, device) for _ in range(5))


# ---- a train step ----------------------------------------------------------------------------------------------------


def model_flops(model: PreTrainedModel, batches: Sequence[MicroBatch]) -> float:
    """Count a train step's floating-point operations: forward once, backward twice, nothing recomputed, no padding.

    6 (layers' matrix weights x tokens + head's weights x scored tokens) + 12 layers x heads' width x attended pairs.
    A pair is a token and one that it attends, itself among them: 2 operations per number for its score and 2 for its
    part of the sum, 3 times.
    """
    config: Any = model.config
    body = sum(weight.numel() for name, weight in model.named_parameters() if ".layers." in name and weight.ndim == 2)
    head = config.hidden_size * config.vocab_size
    total = 0.0
    for batch in batches:
        present_BT = batch.attention_mask_BT
        if batch.pack is None:
            depths = (present_BT.cumsum(1) - 1)[present_BT]
        else:
            depths = batch.pack.depths_N[: int(batch.pack.places_BT.max()) + 1]  # without its padding
        scored = int(batch.loss_mask_BT.sum()) if batch.pack is None else len(batch.pack.trained_S)
        pairs = int((depths + 1).sum())
        total += 6 * (body * len(depths) + head * scored) + 12 * config.num_hidden_layers * config.hidden_size * pairs
    return total


class TrainStep(NamedTuple):
    """A train step, packed or padded, of plain or compiled layers."""

    seconds: float
    """Median of some steps: preparation, forward, backward, update."""
    first_s: float
    """Of the first, which compiles."""
    tokens: int
    """Computed, padding included."""
    tflops: float
    """Operations of a step, see `model_flops`; 10^12."""
    mfu: float
    """Of these, the share of what the device could do in the time."""
    peak_gib: float
    """Most memory in a step beyond weights and what AdamW keeps; in mixed precision with the weights that are cast."""
    grad_norm: float
    """Of the first step."""


def measure_training(name: str, device: torch.device, peak_flops: float, is_dry: bool) -> dict[str, object]:
    """Compare train steps of a cell of `benchmarks/packing.py`, packed and padded in bfloat16, and packed and mixed."""
    sides = {
        way: _train_steps(name, device, peak_flops, is_dry, packing=way == "packed") for way in ("packed", "padded")
    }
    packed, padded = sides["packed"], sides["padded"]
    mixed = _train_steps(name, device, peak_flops, is_dry, packing=True, is_mixed=True)
    ratio = padded.tflops / packed.tflops
    return {
        "cell": "G2-P16" if is_dry else CELL,
        "groups": 1 if is_dry else GROUPS,
        "speedup": padded.seconds / packed.seconds,
        "flop_ratio": ratio,
        "achieved": padded.seconds / packed.seconds / ratio,
        **{way: side._asdict() for way, side in {**sides, "packed, mixed": mixed}.items()},
    }


def measure_compiled(name: str, device: torch.device, peak_flops: float, is_dry: bool) -> dict[str, object]:
    """Measure packed train steps with compiled layers; a dry run, which need not have a compiler, runs plain ones."""
    side = _train_steps(name, device, peak_flops, is_dry, packing=True, compiles=not is_dry)
    return {"packed, compiled": side._asdict()}


def _train_steps(
    name: str,
    device: torch.device,
    peak_flops: float,
    is_dry: bool,
    *,
    packing: bool,
    compiles: bool = False,
    is_mixed: bool = False,
) -> TrainStep:
    model = shaped_model(name, device, is_dry)
    if is_mixed:
        nn.Module.to(model, dtype=torch.float32)
    optim = OptimSettings(lr=1e-6, packing=packing, micro_batch_tokens=8192, compile_layers=compiles)
    cell, groups = ("G2-P16", 1) if is_dry else (CELL, GROUPS)
    rows = as_train_rows([row for seed in range(groups) for row in rows_of(cell, model.config.vocab_size, seed)])
    autocast = torch.bfloat16 if is_mixed else None
    learner = Learner(model, optim=optim, num_steps=REPEATS + 1, device=device, autocast=autocast)
    objective = Objective(loss=PpoClip(), correction=NoCorrection(), settings=ObjectiveSettings(), temperature=1.0)
    norms: list[float] = []

    def step() -> None:
        norms.append(learner.train_step(rows, objective, step=len(norms))["optim/grad_norm"])

    first_s = timed(step, device)  # makes AdamW's moments, too
    with measure_memory(device) as use:
        seconds = statistics.median(timed(step, device) for _ in range(REPEATS))
    batches = learner.micro_batches(rows, range(len(rows)))
    flops = model_flops(model, batches)
    tokens = sum(batch.num_tokens for batch in batches)
    return TrainStep(
        seconds=seconds,
        first_s=first_s,
        tokens=tokens,
        tflops=flops / 1e12,
        mfu=flops / seconds / peak_flops,
        peak_gib=use.peak / GIB,
        grad_norm=norms[0],
    )


# ---- sampling --------------------------------------------------------------------------------------------------------


def step_bytes(model: PreTrainedModel, batch: int, context: int) -> int:
    """Return the bytes that a decoding step must read: every weight once, and keys and values of all contexts."""
    config: Any = model.config
    width = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
    per_token: int = 2 * config.num_hidden_layers * width * model.dtype.itemsize
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return weights + batch * context * per_token


def measure_sampling(name: str, device: torch.device, bandwidth: float, is_dry: bool) -> dict[str, object]:
    """Measure decoding steps at several batch sizes against the time that reading their bytes takes.

    A step's time is the difference between sampling many tokens and a few from the same contexts, by their number.
    """
    model = shaped_model(name, device, is_dry).eval()
    recorded, plain = (
        _sampling_cells(model, device, bandwidth, is_dry, cuda_graphs=cuda_graphs) for cuda_graphs in (True, False)
    )
    return {"context": _context(is_dry)[0], "batches": recorded, "call_by_call": plain}


def _context(is_dry: bool) -> tuple[int, int, int]:
    """Return the tokens of a context, and how few and how many are sampled."""
    return (24, 2, 6) if is_dry else (CONTEXT, 8, 72)


def _sampling_cells(
    model: PreTrainedModel, device: torch.device, bandwidth: float, is_dry: bool, *, cuda_graphs: bool
) -> dict[str, object]:
    context, few, many = _context(is_dry)
    config: Any = model.config
    cells: dict[str, object] = {}
    for batch in BATCHES[:2] if is_dry else BATCHES:
        policy = TransformersPolicy(model, max_batch=batch, shares_weights=True, cuda_graphs=cuda_graphs)
        rng = random.Random(0)
        contexts = [tuple(rng.randrange(config.vocab_size) for _ in range(context)) for _ in range(batch)]

        def sample(tokens: int, policy: TransformersPolicy = policy, contexts: Any = contexts) -> None:  # bound here
            policy.clear_prefix_cache()
            asyncio.run(_sample(policy, contexts, tokens))

        sample(many)  # records what will run
        policy.take_metrics()
        with measure_memory(device) as use:
            short_s = min(timed(lambda: sample(few), device) for _ in range(REPEATS))
            long_s = min(timed(lambda: sample(many), device) for _ in range(REPEATS))
        step_s = max(long_s - short_s, 1e-9) / (many - few)
        bound_s = step_bytes(model, batch, context + (few + many) // 2) / bandwidth
        cells[str(batch)] = {
            "tokens_per_s": batch / step_s,
            "step_ms": 1e3 * step_s,
            "bound_ms": 1e3 * bound_s,
            "of_bound": bound_s / step_s,
            "prefill_s": max(short_s - few * step_s, 0.0),
            "peak_gib": use.peak / GIB,
            "unrecorded": policy.unrecorded,
            **policy.take_metrics(),
        }
        policy.sleep()
    return cells


async def _sample(policy: TransformersPolicy, contexts: Sequence[tuple[int, ...]], tokens: int) -> None:
    sampling = Sampling(max_new_tokens=tokens)
    requests = [GenerateRequest(token_ids=ids, sampling=sampling, seed=seed) for seed, ids in enumerate(contexts)]
    await asyncio.gather(*[policy.generate(request) for request in requests])


# ---- one device in turns ---------------------------------------------------------------------------------------------


def measure_turns(name: str, device: torch.device, is_dry: bool) -> dict[str, object]:
    """Measure how long engines with a copy of the weights take to sleep and wake: transformers, and vLLM if there."""
    cache_gib, sides = 8.0, dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        model = shaped_model(name, device, is_dry)
        gib = sum(weight.numel() * weight.element_size() for weight in model.parameters()) / GIB
        model.save_pretrained(folder)
        sides["transformers"] = turn_cost(TransformersPolicy(model), device, gib)
        del model
        if is_dry or not is_usable():
            sides["vllm"] = {"skipped": "vLLM is not installed for this torch"}
        else:
            from envgym.agents.policies.vllm.policy import VllmPolicy

            policy = VllmPolicy(folder, dtype="bfloat16", max_context=1024, cache_gib=cache_gib)
            sides["vllm"] = turn_cost(policy, device, gib + cache_gib)
    changed = {engine: cost["tokens_changed"] for engine, cost in sides.items() if "skipped" not in cost}
    checks = [
        Check(f"{engine}: tokens that a sleep changed", value, 0.0).to_json() for engine, value in changed.items()
    ]
    return {"gib": gib, **sides, "checks": checks}


def turn_cost(policy: Policy, device: torch.device, gib: float) -> dict[str, float]:
    """Return the seconds that a policy takes to sleep and to wake, also by GiB that it holds; it is closed then."""
    request = GenerateRequest(token_ids=(1, 2, 3), sampling=Sampling(max_new_tokens=4, temperature=0.0), seed=0)
    try:
        before = asyncio.run(policy.generate(request))
        free = free_memory(device) or 0
        sleep_s = timed(policy.sleep, device)
        freed = (free_memory(device) or 0) - free
        wake_s = timed(policy.wake, device)
        after = asyncio.run(policy.generate(request))
    finally:
        policy.close()
    return {
        "sleep_s": sleep_s,
        "wake_s": wake_s,
        "sleep_s_per_gib": sleep_s / gib,
        "wake_s_per_gib": wake_s / gib,
        "freed_gib": freed / GIB,
        "tokens_changed": float(before.token_ids != after.token_ids),
    }
