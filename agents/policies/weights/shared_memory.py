"""Weights in memory that two processes of one machine see: CUDA IPC between processes of one GPU, else a memory file.

The writer holds a version as one buffer and names it; a reader maps the buffer and copies from it. On a CPU the buffer
is a file without a name in any directory, so nothing is left of it when the writer dies.
"""

import base64
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from envgym.agents.models.loading import free_memory
from envgym.core.json_types import JsonObject
from envgym.errors import InvalidInput

_ALIGNMENT: Final = 64
"""Bytes: a tensor begins at a multiple of them, so that it can be viewed as its type."""
_WHERE: Final = "weights in shared memory"


class _Entry(NamedTuple):
    """Where a tensor lies in the buffer."""

    name: str
    shape: list[int]
    dtype: str
    start: int

    def of(self, buffer: Tensor) -> Tensor:
        """Return the tensor, which shares the buffer's memory."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        size = prod(self.shape) * dtype.itemsize
        return buffer[self.start : self.start + size].view(dtype).view(self.shape)


class SharedWeights:
    """A version that others can read until it is closed."""

    def __init__(self, named_tensors: Iterable[tuple[str, Tensor]], device: torch.device) -> None:
        """Copy tensors into a buffer on a device. Raises: InvalidInput: there is no room for it, or no way."""
        tensors = [(name, tensor.detach()) for name, tensor in named_tensors]
        self._entries, size = list[_Entry](), 0
        for name, tensor in tensors:
            dtype = str(tensor.dtype).removeprefix("torch.")
            self._entries.append(_Entry(name, list(tensor.shape), dtype, size))
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._file: int | None = None
        if device.type == "cuda":
            self._buffer = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
        else:
            self._file = _memory_file(max(size, 1))
            self._buffer = _map(f"/proc/self/fd/{self._file}", max(size, 1), is_writer=True)
        for entry, (_, tensor) in zip(self._entries, tensors, strict=True):
            entry.of(self._buffer).copy_(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for entry in self._entries:
            yield entry.name, entry.of(self._buffer)

    def describe(self) -> JsonObject:
        entries: list[Any] = [list(entry) for entry in self._entries]
        if self._file is not None:
            return {"entries": entries, "size": len(self._buffer), "process": os.getpid(), "file": self._file}
        _, *handle = self._buffer.untyped_storage()._share_cuda_()
        parts = [base64.b64encode(part).decode() if isinstance(part, bytes) else part for part in handle]
        return {"entries": entries, "size": len(self._buffer), "gpu": _gpu_id(self._buffer.device), "handle": parts}

    def close(self) -> None:
        """Give the memory back as soon as no reader has it mapped; may be called twice."""
        self._buffer = self._buffer.new_empty(0)
        if self._file is not None:
            os.close(self._file)
            self._file, self._entries = None, []


def read_shared(described: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a version, which must be copied before the next is asked for.

    Args:
        described: as by `SharedWeights.describe`, of a process on this machine.

    Raises: InvalidInput: this process does not see that memory.
    """
    try:
        buffer = _open_cuda(described) if "handle" in described else _open_file(described)
        entries = [_Entry(*entry) for entry in described["entries"]]
        tensors = [(entry.name, entry.of(buffer)) for entry in entries]
    except (AttributeError, KeyError, TypeError, OSError, RuntimeError) as error:
        must, do = (
            "lie in memory that this process sees",
            "run both on one machine, as one user; else use files or nccl",
        )
        raise InvalidInput.of("new weights", must, f"{type(error).__name__}: {error}", where=_WHERE, do=do) from error
    yield from tensors
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)  # the copies have read it


def _memory_file(size: int) -> int:
    """Return a file of a size that lies in memory. Raises: InvalidInput: there are none, or too little is free."""
    if sys.platform != "linux":
        raise InvalidInput.of("transport ipc", "run on Linux", sys.platform, where=_WHERE, do="use the transport files")
    free = free_memory(torch.device("cpu"))
    must, got = f"have {size / 1e9:.1f} GB to hold the weights once more", f"{(free or 0) / 1e9:.1f} GB"
    InvalidInput.unless(free is None or size <= free, "memory", must, got, where=_WHERE, do="use the transport files")
    file = os.memfd_create("envgym-weights")
    os.ftruncate(file, size)
    return file


def _open_file(described: Mapping[str, Any]) -> Tensor:
    path, size = f"/proc/{int(described['process'])}/fd/{int(described['file'])}", int(described["size"])
    if os.stat(path).st_size != size:
        raise OSError(f"{path} is no memory of {size} bytes")
    return _map(path, size, is_writer=False)


def _map(path: str, size: int, *, is_writer: bool) -> Tensor:
    """Map a file; a reader gets pages of its own where it writes."""
    return torch.from_file(path, shared=is_writer, size=size, dtype=torch.uint8)


def _open_cuda(described: Mapping[str, Any]) -> Tensor:
    """Map memory of a GPU that this process sees, under whatever number."""
    numbers = {_gpu_id(torch.device("cuda", number)): number for number in range(torch.cuda.device_count())}
    device = torch.device("cuda", numbers[described["gpu"]])
    parts = [base64.b64decode(part) if isinstance(part, str) else part for part in described["handle"]]
    torch.cuda.init()
    storage = torch.UntypedStorage._new_shared_cuda(device.index, *parts)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _gpu_id(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)
