"""How long the parts of a step take, and how much memory of a GPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from envgym.trainer.metrics.update import Metrics


class StepTimes:
    """Seconds by part of a step, from when it is made."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._metrics: Metrics = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Measure what runs inside."""
        started = time.perf_counter()
        yield
        self._metrics[f"time/{name}_s"] = time.perf_counter() - started

    def metrics(self, *, sampled_tokens: float) -> Metrics:
        """Return the seconds of each part and of all until now, and the sampled tokens per second of collecting."""
        return {
            **self._metrics,
            "time/step_s": time.perf_counter() - self._started,
            "speed/sampled_tokens_per_s": sampled_tokens / max(self._metrics["time/collect_s"], 1e-9),
        }


def peak_memory_metrics(device: torch.device) -> Metrics:
    """Return the most memory of a GPU that tensors held at a time since the last call, GiB; {} for another device."""
    if device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {"memory/peak_gib": peak / 2**30}
