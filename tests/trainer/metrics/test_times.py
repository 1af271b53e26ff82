"""Memory of a GPU in a step's metrics."""

import pytest
import torch

from envgym.trainer.metrics.times import peak_memory_metrics


def test_peak_memory_is_that_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = [3 * 2**29]

    def reset(device: torch.device) -> None:
        assert device == torch.device("cuda:1")
        peaks.append(2**28)  # what is held now is the peak so far

    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peaks[-1])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset)
    assert peak_memory_metrics(torch.device("cuda:1")) == {"memory/peak_gib": 1.5}
    assert peak_memory_metrics(torch.device("cuda:1")) == {"memory/peak_gib": 0.25}


def test_memory_of_the_cpu_is_no_metric() -> None:
    assert peak_memory_metrics(torch.device("cpu")) == {}
