"""The constants of the processor of this machine, measured in a few seconds with small models."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls  # type: ignore[import-untyped]  # SciPy has no stubs
from transformers import LlamaConfig, LlamaForCausalLM

from envgym.agents.policies.engine.batch_engine import BatchEngine
from envgym.agents.policies.engine.cached_model import CachedModel
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.trainer.batch.rows import scored_row
from envgym.trainer.learner.allocator import freed_memory_kept
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.memory import micro_batch_memory, state_memory
from envgym.trainer.learner.optimizers.base import build_optimizer
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.planning.constants import Device

VOCABULARY: Final = 448
_SEQUENCES: Final = ((4, 64), (4, 384), (16, 64), (16, 256))
"""Sequences of a decoding step, and tokens of each before it."""
_STEPS: Final = 6
"""Decoding steps that are measured."""
_ROWS: Final = ((1, 128), (4, 128), (1, 512))
"""Rows of a micro-batch, and tokens of each."""
_REPEATS: Final = 2
_ITEM: Final = 4
"""Bytes of a number."""
_LEAST: Final = 1e-18
"""Seconds of an operation or byte that takes no time that could be measured."""


class _Size(NamedTuple):
    width: int
    layers: int


_SIZES: Final = (_Size(128, 4), _Size(256, 4), _Size(512, 2))


class Measured(NamedTuple):
    """Counts of a piece of work, and its seconds."""

    counts: tuple[float, ...]
    seconds: float


class Calibration(NamedTuple):
    """What one calibration of the processor measured."""

    decoding: list[Measured]
    """Layers, sequences, operations, bytes of weights and bytes of cache of a decoding step."""
    learning: list[Measured]
    """Layers, operations of products, operations of attention and bytes of activations of a micro-batch."""

    def __add__(self, other: object) -> "Calibration":
        """Return both together, from which `device_of` finds means."""
        assert isinstance(other, Calibration)
        return Calibration(self.decoding + other.decoding, self.learning + other.learning)


def calibrate(*, threads: int | None = None, clock: Callable[[], float] = time.perf_counter) -> Calibration:
    """Measure decoding steps, and forward and backward passes.

    Args:
        threads: of torch; None: as they are.
        clock: returns seconds. With one thread, `time.process_time` is not disturbed by other programs.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with freed_memory_kept():  # as a run does
            models = [_model(size) for size in _SIZES]
            decoding = [_decoding(model, *case, clock) for model in models for case in _SEQUENCES]
            return Calibration(decoding, [_learning(model, *case, clock) for model in models for case in _ROWS])
    finally:
        torch.set_num_threads(before)


def device_of(calibration: Calibration, memory: float) -> Device:
    """Return the constants by which the measured times differ least, with `memory` bytes."""
    layer_s, sequence_s, per_flop, per_byte, per_cached = fit(calibration.decoding)
    pass_layer_s, per_train_flop, per_attention_flop, per_kept = fit(calibration.learning)
    return Device(
        name="cpu",
        memory=memory,
        train_flops=1 / max(per_train_flop, _LEAST),
        pass_layer_s=pass_layer_s,
        bandwidth=1 / max(per_byte, _LEAST),
        link=1 / _LEAST,
        decode_layer_s=layer_s,
        recorded_layer_s=layer_s,
        sequence_s=sequence_s,
        decode_flops=1 / max(per_flop, _LEAST),
        attention_flops=1 / max(per_attention_flop, _LEAST),
        activation_bandwidth=1 / max(per_kept, _LEAST),
        cache_bandwidth=1 / max(per_cached, _LEAST),
        link_overlaps=False,
        keeps_freed=True,
        sources=("measured on this machine",),
    )


def fit(measured: Sequence[Measured]) -> list[float]:
    """Return the seconds of each count, none negative, by which the times differ least, relative to each."""
    design = np.array([np.asarray(counts) / seconds for counts, seconds in measured])
    return [float(value) for value in nnls(design, np.ones(len(measured)))[0]]


def llama(width: int, layers: int) -> LlamaForCausalLM:
    """Return a model with random weights of this size."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def _model(size: _Size) -> LlamaForCausalLM:
    return llama(size.width, size.layers)


def _num_parameters(model: LlamaForCausalLM) -> tuple[int, int]:
    """Return the parameters of the layers and of the head."""
    config: Any = model.config
    body = sum(weight.numel() for name, weight in model.named_parameters() if ".layers." in name)
    return body, config.hidden_size * config.vocab_size


def _decoding(model: LlamaForCausalLM, batch: int, context: int, clock: Callable[[], float]) -> Measured:
    engine = BatchEngine[int](CachedModel(model), max_batch=batch)
    sampling = Sampling(max_new_tokens=_STEPS + 2)
    contexts = [tuple((7 * place + number) % VOCABULARY for place in range(context)) for number in range(batch)]
    requests = [
        (seed, GenerateRequest(token_ids=ids, sampling=sampling, seed=seed)) for seed, ids in enumerate(contexts)
    ]
    with engine.model.serving():
        engine.admit(requests, version=0)
        engine.step()
        started = clock()
        for _ in range(_STEPS):
            engine.step()
        seconds = (clock() - started) / _STEPS
    layers, num_parameters = model.config.num_hidden_layers, sum(_num_parameters(model))
    cached = batch * (context + 1 + _STEPS / 2) * 2 * layers * model.config.hidden_size
    return Measured((layers, batch, batch * 2 * num_parameters, _ITEM * num_parameters, _ITEM * cached), seconds)


def _learning(model: LlamaForCausalLM, num_rows: int, length: int, clock: Callable[[], float]) -> Measured:
    forward = ForwardPass(model, OptimSettings(micro_batch_tokens=num_rows * length), device=torch.device("cpu"))
    rows = [
        scored_row(tuple((7 * place + 11 * number) % VOCABULARY for place in range(length)), first=1)
        for number in range(num_rows)
    ]
    (batch,) = forward.micro_batches(rows, range(num_rows))

    def step() -> None:
        with forward.mode():
            scored = forward.hidden_states(batch).logprobs(temperature=1.0, with_entropy=True)
        assert scored.entropies_BT is not None
        (scored.logprobs_BT + scored.entropies_BT).sum().backward()
        model.zero_grad()

    (body, head), config, tokens = _num_parameters(model), model.config, num_rows * length
    pair_flops = 12 * config.num_hidden_layers * config.hidden_size * tokens * length / 2
    kept = tokens * micro_batch_memory(forward).per_token
    counts = (config.num_hidden_layers, 6 * (body + head) * tokens, pair_flops, kept)
    return Measured(counts, mean_seconds(step, clock, _REPEATS))


def mean_seconds(work: Callable[[], object], clock: Callable[[], float], repeats: int) -> float:
    """Return the mean time of some calls, after one that warms up."""
    work()
    started = clock()
    for _ in range(repeats):
        work()
    return (clock() - started) / repeats


def heap_overhead() -> float:
    """Return the growth of this process over the bytes of tensors, in updates of several micro-batches.

    The process must have held less before. Gradients and moments that stay lie between activations that are freed, so
    that the C library cannot use all of that memory again.
    """
    with freed_memory_kept():
        model = llama(320, 4)
        optim = OptimSettings(micro_batch_tokens=_HEAP_TOKENS)
        forward = ForwardPass(model, optim, device=torch.device("cpu"))
        optimizer = build_optimizer(model, optim)
        rows = [scored_row(tuple((7 * k + n) % VOCABULARY for k in range(_HEAP_TOKENS)), first=1) for n in range(3)]
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
        for _ in range(2):
            for batch in forward.micro_batches(rows, range(len(rows))):
                with forward.mode():
                    scored = forward.hidden_states(batch).logprobs(temperature=1.0, with_entropy=True)
                scored.logprobs_BT.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        state, kept = state_memory(model, optim, reference=False), micro_batch_memory(forward)
        return (_memory("VmHWM") - before) / (state.gradients + state.optimizer + kept.of(_HEAP_TOKENS))


_HEAP_TOKENS: Final = 512


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
