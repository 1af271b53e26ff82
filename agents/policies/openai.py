"""A message-level policy over any endpoint that speaks the OpenAI chat-completions protocol.

Use it as an async context manager.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial

from envgym.agents.policies.chat_replies import read_first_token, read_full_context, read_response
from envgym.agents.policies.endpoint import Endpoint, Json, Sleep
from envgym.agents.rollout.messages import MessagePolicy, MessageReply, MessageRequest
from envgym.agents.settings import EndpointSettings
from envgym.chats.openai import listed_tools, messages_to_wire

_SEED_BITS = 0x7FFFFFFF
"""Seeds are sent as 31 bits: some endpoints take no more."""
TOP_LOGPROBS = 20
"""Most that the protocol allows."""


class OpenAIPolicy(MessagePolicy):
    """Asks an endpoint, within its limits."""

    def __init__(
        self, settings: EndpointSettings, *, sleep: Sleep = asyncio.sleep, jitter: Callable[[], float] = random.random
    ) -> None:
        self.settings = settings
        self._endpoint = Endpoint(settings, sleep=sleep, jitter=jitter)

    async def __aexit__(self, *error: object) -> None:
        await self._endpoint.close()

    async def reply(self, request: MessageRequest) -> MessageReply:
        """Answer one conversation. Raises: PolicyFailure: refused, or still failing after the last attempt."""
        max_new_tokens = request.sampling.max_new_tokens
        return await self._endpoint.post(
            "/chat/completions",
            self._body(request),
            partial(read_response, has_tools=bool(request.tools)),
            read_refusal=partial(read_full_context, max_new_tokens=max_new_tokens),
        )

    async def first_token_probabilities(self, request: MessageRequest) -> Mapping[str, float]:
        """Return the most probable first tokens of a reply with their probabilities, at most `TOP_LOGPROBS` of them.

        Raises: PolicyFailure: as `reply`; also where the endpoint states no log-probs.
        """
        body = self._body(request) | {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        return await self._endpoint.post("/chat/completions", body, read_first_token)

    def _body(self, request: MessageRequest) -> Json:
        settings, sampling = self.settings, request.sampling
        body: Json = {
            "model": settings.model,
            "messages": messages_to_wire(request.messages),
            settings.max_tokens_field: sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "seed": request.seed & _SEED_BITS,
        }
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if request.tools:
            body["tools"] = listed_tools(request.tools)
        return body
