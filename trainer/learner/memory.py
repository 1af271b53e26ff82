"""How much memory a piece of work needs beyond what was held before it, and what a model's training state takes."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_CLEAR_PEAK = "5"
"""Linux: sets the peak of the resident memory back to what is resident now."""
_MOMENTS = 2
"""Numbers that AdamW keeps per parameter."""


class Peak:
    """What `peak_memory` measured."""

    num_bytes = 0


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measure the most memory that the block holds at a time, beyond what was held at its start.

    On CUDA the allocator's own count; elsewhere the resident memory of the process, which leaves out what the block
    found free in the process, and outside Linux also what had been resident before.
    """
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.num_bytes = torch.cuda.max_memory_allocated(device) - before
        return
    before = _reset_resident_peak()
    yield peak
    peak.num_bytes = max(_resident_peak() - before, 0)


def _reset_resident_peak() -> int:
    """Set the peak back where the system can, and return it."""
    with suppress(OSError):  # another system, or not allowed here
        _CLEAR.write_text(_CLEAR_PEAK)
    return _resident_peak()


def _resident_peak() -> int:
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


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


def state_memory(model: nn.Module, *, reference: bool) -> StateMemory:
    """Count weights, gradients and AdamW's moments of a model.

    Args:
        model: plain, or with adapters.
        reference: whether a frozen copy is kept for the KL term; with adapters that is a copy of the adapters.
    """
    held = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    copied = (trained if hasattr(model, "peft_config") else held) if reference else 0
    return StateMemory(weights=held + copied, gradients=trained, optimizer=_MOMENTS * trained)
