"""One engine and one model for all tests of this folder: an engine takes longer to start than they take together."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from envgym.agents.policies.vllm.policy import VllmPolicy


@pytest.fixture(scope="package")
def model() -> "LlamaForCausalLM":
    """Return the tiny model, which no test changes."""
    from transformers import LlamaForCausalLM

    from envgym.agents.models.loading import load

    loaded = load("tiny").model
    assert isinstance(loaded, LlamaForCausalLM)
    return loaded


@pytest.fixture(scope="package")
def policy() -> Iterator["VllmPolicy"]:
    """Yield an engine of the tiny model; a test may leave other weights in it."""
    from envgym.agents.models.loading import resolve_model
    from envgym.agents.policies.vllm.policy import VllmPolicy

    made = VllmPolicy(resolve_model("tiny"), max_context=1000, cache_gib=0.1, threads=1, with_raw=True)
    yield made
    made.close()
