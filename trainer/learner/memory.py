"""Memory of training: what a block of code holds, and what a train step will need before there has been one."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from envgym.errors import RunError, sentence
from envgym.trainer.batch.rows import MicroBatch, scored_row
from envgym.trainer.learner.causal_lm import causal_lm, lm_head_of
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.logprobs import default_chunk_size
from envgym.trainer.learner.optimizers.base import OPTIMIZER, bytes_here, trainable
from envgym.trainer.learner.settings import OptimSettings

_PROBE_TOKENS: Final = 128
"""Of the forward pass that is measured."""
_LOGIT_BUFFERS: Final = 3
"""Float32 numbers that the head holds at most per logit of a chunk."""
_IN_LAYER: Final = 0.25
"""Of what a layer keeps of its forward pass: what its backward pass holds beside that."""
_STEP: Final = 128
"""A proposed number of tokens is a multiple of this."""
_SHARE: Final = 0.9
"""Of the free memory that a proposed number of tokens may use: the allocator cannot use all."""


class MemoryUse:
    """What `measure_memory` measured, in bytes beyond what was held at the start."""

    peak = 0
    """The most at a time."""
    remaining = 0
    """At the end."""


@contextmanager
def measure_memory(device: torch.device) -> Iterator[MemoryUse]:
    """Measure the memory that the block holds: on CUDA the allocator's count, elsewhere the tensors of this thread."""
    use = MemoryUse()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield use
        use.peak = torch.cuda.max_memory_allocated(device) - before
        use.remaining = torch.cuda.memory_allocated(device) - before
        return
    # Compiled code makes tensors that nobody sees. Nor would torch ever compile what it has seen in such a mode.
    with torch.compiler.set_stance("force_eager"), _TensorBytes(use):
        yield use


class _TensorBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are made while it is on, until they are gone."""

    def __init__(self, use: MemoryUse) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._use = use
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # any operation of torch
        """Run an operation; what it is given and has not made was there before."""
        self._add((args, kwargs), is_new=False)
        result = func(*args, **(kwargs or {}))
        self._add(result, is_new=True)
        return result

    def _add(self, values: object, *, is_new: bool) -> None:
        for tensor in tree_leaves(values):
            if not isinstance(tensor, Tensor) or (storage := tensor.untyped_storage())._cdata in self._storages:
                continue
            key, num_bytes = storage._cdata, storage.nbytes() if is_new else 0
            self._storages[key] = weakref.ref(storage, partial(self._drop, key, num_bytes))
            self._use.remaining += num_bytes
            self._use.peak = max(self._use.peak, self._use.remaining)

    def _drop(self, key: int, num_bytes: int, _: object) -> None:
        del self._storages[key]
        self._use.remaining -= num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMemory:
    """Bytes that training holds between micro-batches."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer

    def __add__(self, other: "StateMemory") -> "StateMemory":
        return StateMemory(
            weights=self.weights + other.weights,
            gradients=self.gradients + other.gradients,
            optimizer=self.optimizer + other.optimizer,
        )


def state_memory(model: nn.Module, optim: OptimSettings, *, reference: bool) -> StateMemory:
    """Count weights, gradients and the optimizer's numbers of a model; of a sharded one, those of this rank.

    Args:
        model: plain, or with adapters.
        optim: names the optimizer.
        reference: whether a frozen copy is kept for the KL term; with adapters that is a copy of the adapters, but on
            learner ranks, which keep a shard of the whole.
    """
    weights, trained = bytes_here(model.parameters()), bytes_here(trainable(model))
    is_sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    copied = (trained if hasattr(model, "peft_config") and not is_sharded else weights) if reference else 0
    optimizer = OPTIMIZER.build(optim.optimizer).state_bytes(model)
    return StateMemory(weights=weights + copied, gradients=trained, optimizer=optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchMemory:
    """Bytes that forward and backward of a micro-batch hold beyond weights, gradients and optimizer."""

    per_token: float
    """Kept for the backward pass."""
    per_token_in_layer: float
    """Held while the backward pass is inside one layer."""
    head: int
    """Held by the head, for any number of tokens, before the backward pass reaches the layers."""
    casts: int = 0
    """Held in copies of the weights in the dtype of the matrix products, where that is another; with gradient
    checkpointing, the copies of frozen weights are those of one layer."""

    def of(self, num_tokens: int) -> int:
        """Return those of a micro-batch with so many tokens."""
        of_tokens = self.per_token * num_tokens + max(self.head, self.per_token_in_layer * num_tokens)
        return self.casts + round(of_tokens)

    def fitting(self, num_bytes: int) -> int:
        """Return how many tokens need at most so many bytes, with a reserve; 0 where it is none."""
        usable = _SHARE * num_bytes - self.casts
        in_head, in_layers = (usable - self.head) / self.per_token, usable / (self.per_token + self.per_token_in_layer)
        return round_down(max(int(min(in_head, in_layers)), 0))


def micro_batch_memory(forward: ForwardPass) -> MicroBatchMemory:
    """Estimate what micro-batches hold, from forward passes of `_PROBE_TOKENS` tokens or as many as have positions.

    What a pass keeps for the backward pass grows with the tokens. To it comes the larger of two: the head's
    `_LOGIT_BUFFERS` buffers [chunk, vocabulary] in float32 with, where it trains, its gradient, and its copy where
    products have another dtype than weights; or what is held inside one layer, `_IN_LAYER` of what the layer keeps, and
    with gradient checkpointing that, too, as it is computed again.
    Attention that stores all pairs ("eager") needs more at long rows.
    """
    model, inner = forward.model, causal_lm(forward.model)
    config, weight_VD = inner.config.get_text_config(), lm_head_of(model).weight_VD
    num_tokens = min(_PROBE_TOKENS, getattr(config, "max_position_embeddings", None) or _PROBE_TOKENS)
    recomputes = bool(getattr(model, "is_gradient_checkpointing", False))
    saved = _kept_memory(forward, num_tokens)
    whole = _kept_memory(forward, num_tokens, recomputes=False) if recomputes else saved
    # What is computed again holds the constant part of one layer at a time.
    constant = saved.constant + (whole.constant / config.num_hidden_layers if recomputes else 0)
    return MicroBatchMemory(
        per_token=saved.per_token,
        per_token_in_layer=(recomputes + _IN_LAYER) * whole.per_token / config.num_hidden_layers,
        head=head_memory(
            weight_VD.device,
            *weight_VD.shape,
            is_trained=weight_VD.requires_grad,
            is_cast=forward.autocast is not None,
        ),
        casts=saved.casts + round(constant),
    )


def head_memory(device: torch.device, num_tokens: int, width: int, *, is_trained: bool, is_cast: bool) -> int:
    """Return the bytes that the head of a vocabulary of `num_tokens` holds.

    These are logits, its gradient if it trains, and its cast to 16 bits.
    """
    logits = _LOGIT_BUFFERS * default_chunk_size(device) * num_tokens * 4
    return logits + num_tokens * width * (4 * is_trained + 2 * is_cast)


class _KeptMemory(NamedTuple):
    """Bytes that a forward pass keeps for its gradient."""

    per_token: float
    constant: float
    """For any number of tokens: casts of frozen weights, which autocast makes anew in each product."""
    casts: int
    """Casts of weights that train, which autocast makes once."""


def _kept_memory(forward: ForwardPass, num_tokens: int, *, recomputes: bool = True) -> _KeptMemory:
    """Measure a pass; with autocast also one of half the tokens, as only the difference grows with the tokens."""
    num_bytes, casts = _kept_bytes(forward, num_tokens, recomputes=recomputes)
    if forward.autocast is None or num_tokens < 2:
        return _KeptMemory(num_bytes / num_tokens, 0.0, casts)
    half = num_tokens // 2
    bytes_of_half, _ = _kept_bytes(forward, half, recomputes=recomputes)
    per_token = min(num_bytes / num_tokens, (num_bytes - bytes_of_half) / (num_tokens - half))
    return _KeptMemory(per_token, num_bytes - per_token * num_tokens, casts)


def _kept_bytes(forward: ForwardPass, num_tokens: int, *, recomputes: bool) -> tuple[int, int]:
    """Return the bytes that a forward pass keeps for its gradient, and those of the weights that autocast has cast."""
    num_bytes: list[int] = []
    vocabulary = len(lm_head_of(forward.model).weight_VD)
    row = scored_row(tuple(place % vocabulary for place in range(num_tokens)), first=1)
    (batch,) = forward.micro_batches([row], [0])
    with forward.mode():
        if not recomputes:
            forward.model.eval()  # checkpointing is for training alone
        # Autocast keeps what it has cast until the block ends, so the first pass alone casts.
        for _ in range(1 if forward.autocast is None else 2):
            with measure_memory(forward.device) as use:
                states = forward.hidden_states(batch)
            num_bytes.append(use.remaining)
            del states  # until here it held what its gradient needs
    return num_bytes[-1], num_bytes[0] - num_bytes[-1]


def too_many_tokens(got: str, *, where: object, fitting: int) -> str:
    """Return the sentence on micro-batches that do not fit, given how many tokens would; 0 where none would."""
    do = "set model.gradient_checkpointing=true, lower agent.max_context_tokens, or choose a smaller model"
    if fitting:
        do = f"lower optim.micro_batch_tokens to {fitting}"
    return sentence("optim.micro_batch_tokens", "fit the memory that is free", got, where=str(where), do=do)


@contextmanager
def explain_out_of_memory(batch: MicroBatch, optim: OptimSettings, device: torch.device) -> Iterator[None]:
    """Say what to do where a micro-batch does not fit. Raises: RunError: it does not."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # A row that is longer stands alone, whatever the limit is.
        limit = min(optim.micro_batch_tokens, batch.num_tokens)
        fitting = round_down(limit // 2) if len(batch.rows) > 1 else 0
        got = f"{optim.micro_batch_tokens}: a micro-batch of {batch.num_tokens} tokens ran out of it"
        raise RunError(too_many_tokens(got, where=device, fitting=fitting)) from error


def round_down(num_tokens: int) -> int:
    """Return a number of tokens to propose: a multiple of `_STEP`, where there is one."""
    return num_tokens - num_tokens % _STEP if num_tokens > _STEP else num_tokens
