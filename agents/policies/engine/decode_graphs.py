"""Decoding steps recorded as CUDA graphs: a step is one launch instead of one for each of its hundreds of kernels.

A recording holds shapes and addresses. So one is made for each number of rows and of columns read, both rounded up, and
it reads and writes buffers that stay where they are. A row that nobody uses writes its keys and values into the last
column of the cache, which holds no token; what it computes is not looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from envgym.agents.policies.engine.cache import SlotCache

Step = Callable[[Tensor, Tensor, int], Tensor]
"""Of tokens [B], positions [B] and columns read: [B, V] logits; keys and values go to the rows' positions."""
Recorder = Callable[[Callable[[], None]], Callable[[], None]]
"""Runs work on the device, and returns what runs it again, on what its tensors hold then."""

_COLUMNS: Final = 128
"""Columns read are a multiple of this, and above eight times as many of a larger one: at most an eighth is in vain."""
_MAX_RECORDINGS: Final = 128
"""Of these the one that was used the longest time ago gives way."""


@dataclass(slots=True)
class DecodeSteps:
    """Decoding steps on a device that can record them."""

    count: int = 0
    num_recorded: int = 0
    """Of these, the steps that ran from a recording."""
    num_recordings: int = 0
    """Recordings that were made; nearly as many as steps mean that what they address keeps moving."""
    reason: str | None = None
    """Why steps ran call by call; None: none did."""


class _Buffers(NamedTuple):
    tokens: Tensor
    positions: Tensor
    logits: Tensor
    cache_size: tuple[int, int]
    """Rows and columns of the cache that the recordings address."""


class DecodeGraphs:
    """Runs decoding steps from recordings, which it makes as they are needed."""

    def __init__(self, step: Step, cache: SlotCache, *, vocabulary: int, recorder: Recorder) -> None:
        """Record nothing yet.

        Args:
            step: the same work for the same shapes; nothing in it waits for the device.
            cache: that the step writes to.
            vocabulary: V.
            recorder: of the device, see `CudaRecorder`.
        """
        self._step, self._cache, self._vocabulary, self._record = step, cache, vocabulary, recorder
        self._buffers: _Buffers | None = None
        self._recordings: dict[tuple[int, int], Callable[[], None]] = {}
        """By rows and columns; the last one used comes last."""
        self.num_recordings = 0
        """That were made."""

    def forget(self) -> None:
        """Drop the recordings, as what they address has moved."""
        self._recordings.clear()
        self._buffers = None

    def decode(self, tokens: Tensor, positions: Tensor, width: int) -> Tensor:
        """Return [B, V] logits, which the next call overwrites; see `CachedModel.decode`.

        Raises: RuntimeError: the device cannot record the step.
        """
        num_rows, columns = rounded_rows(len(tokens)), rounded_columns(width)
        self._cache.reserve(rows=num_rows, columns=columns)
        buffers = self._buffers_for(tokens)
        buffers.tokens[: len(tokens)] = tokens
        buffers.positions.fill_(buffers.cache_size[1] - 1)
        buffers.positions[: len(tokens)] = positions
        replay = self._recordings.pop((num_rows, columns), None)
        if replay is None:
            while len(self._recordings) >= _MAX_RECORDINGS:
                del self._recordings[next(iter(self._recordings))]
            replay = self._record(lambda: self._run(buffers, num_rows, columns))
            self.num_recordings += 1
        self._recordings[num_rows, columns] = replay
        replay()
        return buffers.logits[: len(tokens)]

    def _run(self, buffers: _Buffers, num_rows: int, columns: int) -> None:
        logits = self._step(buffers.tokens[:num_rows], buffers.positions[:num_rows], columns)
        buffers.logits[:num_rows] = logits

    def _buffers_for(self, tokens: Tensor) -> _Buffers:
        layout = self._cache.layout
        cache_size = layout.max_rows, layout.max_columns
        if self._buffers is None or self._buffers.cache_size != cache_size:
            self.forget()
            rows = layout.max_rows
            logits = torch.empty((rows, self._vocabulary), dtype=torch.float32, device=tokens.device)
            self._buffers = _Buffers(tokens.new_zeros(rows), tokens.new_zeros(rows), logits, cache_size)
        return self._buffers


class CudaRecorder:
    """Records work as CUDA graphs, which share the memory of what they compute on the way."""

    def __init__(self, device: torch.device) -> None:
        """Use a stream of its own for recording."""
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run the work once, so that all kernels are loaded, and record it. Raises: RuntimeError: CUDA cannot."""
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
            # What other threads do on the device, such as training another copy, is none of this recording's business.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        return graph.replay


def rounded_rows(count: int) -> int:
    """Return the next power of two: a step takes nearly as long for a few rows as for one."""
    return 1 << (count - 1).bit_length()


def rounded_columns(count: int) -> int:
    """Return the next multiple of 128, and beyond 1,024 of an eighth of the power of two below."""
    step = max(_COLUMNS, (1 << (count.bit_length() - 1)) // 8)
    return -(-count // step) * step
