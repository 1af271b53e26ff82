"""What is compared with, and skipped where it is not installed."""

import warnings
from importlib import import_module
from typing import Any

import pytest


def _verl(module: str) -> Any:  # verl ships no types
    """Import a module of verl, which brings Ray and warns about what the machine lacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("verl", reason="verl is not installed: see constraints/peers.txt")
        return import_module(module)


@pytest.fixture(scope="session")
def core_algos() -> Any:  # verl ships no types
    """verl's estimators of advantages, its losses and aggregations."""
    return _verl("verl.trainer.ppo.core_algos")


@pytest.fixture(scope="session")
def rollout_correction() -> Any:  # as above
    """verl's corrections for the mismatch between sampler and trainer."""
    return _verl("verl.trainer.ppo.rollout_corr_helper")
