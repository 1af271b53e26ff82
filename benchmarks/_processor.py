"""The constants of the processor of this machine, measured in a few seconds with small models."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls  # type: ignore[import-untyped]  # SciPy has no stubs
from transformers import LlamaConfig, LlamaForCausalLM

from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.trainer.batch.rows import scored_row
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.planning.constants import Device

VOCABULARY: Final = 512
_CONTEXTS: Final = (32, 256)
"""Tokens before the first sampled one."""
_FEW: Final = 4
_MANY: Final = 20
"""Sampled tokens. The difference in time to `_FEW` is that of decoding steps."""
_ITEM: Final = 4
"""Bytes of a number."""
_ROW: Final = 128
"""Tokens of a row that learns."""
_REPEATS: Final = 2
_UNBOUNDED: Final = 1e18
"""A rate that never limits."""


class _Size(NamedTuple):
    width: int
    layers: int


_SIZES: Final = (_Size(128, 2), _Size(128, 6), _Size(384, 4))


def measure_processor(
    memory: float, *, threads: int | None = None, clock: Callable[[], float] = time.perf_counter
) -> Device:
    """Measure decoding steps and forward and backward passes, and fit the constants of `Device` to them.

    Args:
        memory: bytes that the plan may use.
        threads: of torch; None: as they are.
        clock: returns seconds. With one thread, `time.process_time` is not disturbed by other programs.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        models = [_model(size) for size in _SIZES]
        decoding = [
            _decoding(model, batch, context, clock) for model in models for batch in (4, 32) for context in _CONTEXTS
        ]
        learning = [_learning(model, rows, clock) for model in models for rows in (2, 8)]
    finally:
        torch.set_num_threads(before)
    layer_s, sequence_s, per_flop, per_byte = _fit(decoding)
    pass_layer_s, per_train_flop = _fit(learning)
    return Device(
        name="cpu",
        memory=memory,
        train_flops=1 / max(per_train_flop, 1 / _UNBOUNDED),
        pass_layer_s=pass_layer_s,
        bandwidth=1 / max(per_byte, 1 / _UNBOUNDED),
        link=_UNBOUNDED,
        decode_layer_s=layer_s,
        recorded_layer_s=layer_s,
        sequence_s=sequence_s,
        decode_flops=1 / max(per_flop, 1 / _UNBOUNDED),
        sources=("measured on this machine",),
    )


def _fit(measured: list[tuple[tuple[float, ...], float]]) -> list[float]:
    """Return the constants, none negative, by which the times differ least, relative to each."""
    design = np.array([np.asarray(parts) / seconds for parts, seconds in measured])
    return [float(value) for value in nnls(design, np.ones(len(measured)))[0]]


def _model(size: _Size) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.width,
        intermediate_size=3 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.width // 32,
        num_key_value_heads=size.width // 32,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def _num_parameters(model: LlamaForCausalLM) -> tuple[int, int]:
    """Return the parameters of the layers and of the head."""
    config: Any = model.config
    body = sum(weight.numel() for name, weight in model.named_parameters() if ".layers." in name)
    return body, config.hidden_size * config.vocab_size


def _decoding(
    model: LlamaForCausalLM, batch: int, context: int, clock: Callable[[], float]
) -> tuple[tuple[float, ...], float]:
    """Return layers, sequences, operations and bytes of a decoding step, and its seconds."""
    policy = TransformersPolicy(model, max_batch=batch, shares_weights=True)
    contexts = [tuple((7 * place + number) % VOCABULARY for place in range(context)) for number in range(batch)]

    def sample(num_tokens: int) -> None:
        policy.clear_prefix_cache()
        sampling = Sampling(max_new_tokens=num_tokens)
        requests = [GenerateRequest(token_ids=ids, sampling=sampling, seed=seed) for seed, ids in enumerate(contexts)]
        asyncio.run(_generate(policy, requests))

    seconds = (_seconds(partial(sample, _MANY), clock) - _seconds(partial(sample, _FEW), clock)) / (_MANY - _FEW)
    layers, num_parameters = model.config.num_hidden_layers, sum(_num_parameters(model))
    cached = batch * (context + (_FEW + _MANY) / 2) * 2 * layers * model.config.hidden_size
    parts = (layers, batch, batch * 2 * num_parameters, _ITEM * (num_parameters + cached))
    return parts, max(seconds, 1e-6)


async def _generate(policy: TransformersPolicy, requests: list[GenerateRequest]) -> None:
    await asyncio.gather(*map(policy.generate, requests))


def _learning(model: LlamaForCausalLM, num_rows: int, clock: Callable[[], float]) -> tuple[tuple[float, ...], float]:
    """Return layers and operations of a forward and backward pass, and its seconds."""
    forward = ForwardPass(model, OptimSettings(micro_batch_tokens=num_rows * _ROW), device=torch.device("cpu"))
    ids = [tuple((7 * place + 11 * number) % VOCABULARY for place in range(_ROW)) for number in range(num_rows)]
    rows = [scored_row(row, first=1) for row in ids]
    (batch,) = forward.micro_batches(rows, range(num_rows))

    def step() -> None:
        with forward.mode():
            forward.hidden_states(batch).logprobs(temperature=1.0).logprobs_BT.sum().backward()
        model.zero_grad()

    (body, head), config = _num_parameters(model), model.config
    tokens = num_rows * _ROW
    flops = 6 * (body + head) * tokens + 6 * config.num_hidden_layers * config.hidden_size * tokens * _ROW
    return (config.num_hidden_layers, flops), _seconds(step, clock)


def _seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the least time of some calls, after one that warms up."""
    work()
    times = []
    for _ in range(_REPEATS):
        started = clock()
        work()
        times.append(clock() - started)
    return min(times)
