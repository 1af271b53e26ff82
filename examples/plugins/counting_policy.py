"""A policy backend: what samples. This one wraps the policy of transformers and counts what it samples.

    envgym train run.yaml --set engine.backend.name=examples/plugins/counting_policy.py:CountingBackend
    envgym eval --model runs/first --backend examples/plugins/counting_policy.py:CountingBackend

A backend is called with the model and engine sections and returns a `Policy`; its settings stand beside its name. A
policy that inherits from `Policy` says what it can do: this one samples from the learner's own weights.
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from envgym.agents.policies.backends import transformers_policy
from envgym.agents.protocols import GenerateRequest, Generation, Policy
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


class CountingPolicy(Policy):
    """Passes everything on to another policy, and counts tokens."""

    def __init__(self, inner: Policy) -> None:
        """Wrap `inner`."""
        self._inner, self.num_tokens = inner, 0
        self.shares_weights, self.accepts_weights = inner.shares_weights, inner.accepts_weights

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        return self._inner.version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one continuation."""
        generation = await self._inner.generate(request)
        self.num_tokens += len(generation.token_ids)
        return generation

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return the raw log-probs."""
        return await self._inner.compute_logprobs(token_ids)

    def update_weights(self, named_tensors: Iterable[tuple[str, "Tensor"]], version: int) -> None:
        """Put new weights in place."""
        self._inner.update_weights(named_tensors, version)

    def set_version(self, version: int) -> None:
        """Name the weights that are in place."""
        self._inner.set_version(version)

    def clear_prefix_cache(self) -> None:
        """Compute every context anew from now on."""
        self._inner.clear_prefix_cache()

    def pause(self) -> AbstractContextManager[None]:
        """Hold sampling off while the shared weights change."""
        return self._inner.pause()

    def close(self) -> None:
        """End the other policy, and print the count."""
        self._inner.close()
        print(f"sampled {self.num_tokens} tokens", file=sys.stderr)


class CountingBackend(Settings):
    """Make a counting policy around that of transformers."""

    def __call__(
        self, model: ModelSettings, engine: EngineSettings, learner_model: Any | None, deterministic: bool
    ) -> Policy:
        """Make the policy."""
        return CountingPolicy(transformers_policy(model, engine, learner_model, deterministic))
