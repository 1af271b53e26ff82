"""The benchmark of sampling ahead runs, small, and counts what it says."""

import asyncio

import pytest

from benchmarks import ahead
from envgym.trainer.build import build_run_context


def test_a_sampler_is_busier_ahead_of_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "STEP_S", (0.001, 0.01))
    bench = build_run_context(ahead.settings(2))
    for rollout in ahead.WAYS.values():
        found = asyncio.run(ahead.drive(bench, ahead.settings(2, **rollout), steps=3, learn_s=0.01))
        assert 0 < found.busy <= 1 + ahead.SERVICE_S / found.step_s  # what is under way at the start counts whole
        assert found.step_s >= 0.01
        assert 0 <= found.too_old < 1
