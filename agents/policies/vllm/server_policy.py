"""A policy that samples from a model that vLLM serves: token ids in, token ids and log-probs out, over HTTP.

Use it as an async context manager: it looks at the server before the first request. The weights are the server's, so it
evaluates and does not train. Waiting and trying again are those of `Endpoint`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

from envgym.agents.policies.endpoint import Endpoint, Json, Sleep
from envgym.agents.policies.engine.requests import max_sampled_tokens
from envgym.agents.policies.vllm import wire
from envgym.agents.protocols import GenerateRequest, Generation, Policy, Sampling
from envgym.agents.settings import EndpointSettings
from envgym.errors import InvalidInput, PolicyFailure, check_known

if TYPE_CHECKING:
    from torch import Tensor

_PATH = "/completions"
_PROBE = GenerateRequest(token_ids=(1, 2, 3), sampling=Sampling(top_k=1, max_new_tokens=8), seed=0)
"""With one candidate, log-probs after the cut are 0; those before it are not, over several tokens."""
_NEAR_ZERO = 1e-6


class VllmServerPolicy(Policy):
    """Samples through vLLM's OpenAI-compatible `/completions`."""

    accepts_weights = False

    def __init__(self, settings: EndpointSettings, *, version: int = 0, sleep: Sleep = asyncio.sleep) -> None:
        """Prepare to ask an endpoint, whose `model` may be an adapter that the server has. Raises: as `Endpoint`."""
        self._endpoint = Endpoint(settings, sleep=sleep)
        self._model, self._where = settings.model, self._endpoint.url
        self._version = version
        self._positions: int | None = None
        self._states_raw = False

    async def __aenter__(self) -> Self:
        """Return the policy, once the server has shown what it serves and which log-probs it states.

        Raises: UnknownName: it serves no such model. PolicyFailure: it does not answer, or without token ids.
        """
        try:
            models = await self._endpoint.get("/models", wire.read_models)
            check_known("served model", self._model, models, where=self._where)
            longest = models[self._model]
            # One fewer, as vLLM scores a sequence only where a token could follow it.
            self._positions = None if longest is None else longest - 1
            probe = await self._sample(_PROBE, limit=_PROBE.sampling.max_new_tokens)
            self._states_raw = any(abs(value) > _NEAR_ZERO for value in probe.behavior_logprobs)
        except BaseException:
            await self._endpoint.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._endpoint.close()

    def check_sampling(self, sampling: Sampling) -> None:
        """See that the server can state the log-probs of what is sampled so.

        Raises: InvalidInput: a setting out of range. PolicyFailure: it states those before temperature and cuts.
        """
        sampling.check(self._where, max_top_logprobs=self.max_top_logprobs)
        if self._states_raw and not wire.samples_raw(sampling):
            must, got = "state log-probs of the distribution sampled from", "those before temperature, top-k and top-p"
            do = (
                "serve with --logprobs-mode processed_logprobs, or sample at temperature 0 or 1 without top-k and top-p"
            )
            raise PolicyFailure.of("vLLM server", must, got, where=self._where, do=do)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one continuation.

        Raises: PolicyFailure: the server refuses, does not answer, has no position left for the context, or answers
            without token ids. InvalidInput: an empty context, or sampling settings out of range.
        """
        self.check_sampling(request.sampling)
        limit = max_sampled_tokens(request, positions=self._positions, where=self._where)
        return await self._sample(request, limit=limit)

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return for each sequence the raw log-prob of every token given those before it; 0.0 for the first.

        Raises: PolicyFailure: the server refuses, does not answer, or has fewer positions than a sequence tokens.
        """
        longest = max(map(len, token_ids), default=0)
        if self._positions is not None and longest > self._positions:
            must, do = f"fit the model's {self._positions} positions", "serve with a larger --max-model-len"
            raise PolicyFailure.of("sequence", must, f"{longest} tokens", where=self._where, do=do)
        return list(await asyncio.gather(*[self._compute_logprobs(row) for row in token_ids]))

    def update_weights(self, named_tensors: Iterable[tuple[str, "Tensor"]], version: int) -> None:
        """Refuse: the weights are the server's. Raises: InvalidInput."""
        do = "train with engine.backend=vllm, which holds its own"
        raise InvalidInput.of("weights", "stay as they are served", f"version {version}", where=self._where, do=do)

    async def _sample(self, request: GenerateRequest, *, limit: int) -> Generation:
        version = self._version
        body = wire.completion_body(request, limit=limit)
        return await self._endpoint.post(
            _PATH,
            self._named(body),
            lambda content: wire.read_completion(content, request, version=version),
        )

    async def _compute_logprobs(self, row: tuple[int, ...]) -> tuple[float, ...]:
        if not row:
            return ()
        body = self._named(wire.logprobs_body(row))
        return await self._endpoint.post(_PATH, body, lambda content: wire.read_prompt_logprobs(content, row))

    def _named(self, body: Json) -> Json:
        """Add the model, and a salt: what an older version has cached is not found again."""
        return {"model": self._model, "cache_salt": f"version {self._version}", **body}
