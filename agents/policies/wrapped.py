"""A policy around another one, to which it hands everything on."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from envgym.agents.protocols import GenerateRequest, Generation, Policy

if TYPE_CHECKING:
    from torch import Tensor


class WrappedPolicy(Policy):
    """Hands everything on; a class that derives from it adds what it is for, mostly in `generate`."""

    def __init__(self, policy: Policy) -> None:
        """Wrap a policy, which is not closed with this one."""
        self._policy = policy
        self.shares_weights, self.accepts_weights = policy.shares_weights, policy.accepts_weights
        self.max_top_logprobs = policy.max_top_logprobs

    @property
    def version(self) -> int:
        return self._policy.version

    async def generate(self, request: GenerateRequest) -> Generation:
        return await self._policy.generate(request)

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        return await self._policy.compute_logprobs(token_ids)

    def update_weights(self, named_tensors: "Iterable[tuple[str, Tensor]]", version: int) -> None:
        self._policy.update_weights(named_tensors, version)

    def set_version(self, version: int) -> None:
        self._policy.set_version(version)

    def pause(self, version: int | None = None) -> AbstractContextManager[None]:
        return self._policy.pause(version)

    def clear_prefix_cache(self) -> None:
        self._policy.clear_prefix_cache()
