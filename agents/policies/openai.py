"""A message-level policy over any endpoint that speaks the OpenAI chat-completions protocol.

Use it as an async context manager.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from envgym.agents.policies._chat_wire import messages_to_wire, read_response, says_context_is_full, tool_to_wire
from envgym.agents.policies.endpoint import Endpoint, Sleep
from envgym.agents.protocols import FinishReason
from envgym.agents.rollout.messages import MessagePolicy, MessageReply, MessageRequest
from envgym.agents.settings import EndpointSettings
from envgym.core.messages import Action

_SEED_BITS = 0x7FFFFFFF
"""Seeds are sent as 31 bits: some endpoints take no more."""


class OpenAIPolicy(MessagePolicy):
    """Asks an endpoint, within its limits."""

    def __init__(
        self, settings: EndpointSettings, *, sleep: Sleep = asyncio.sleep, jitter: Callable[[], float] = random.random
    ) -> None:
        """Prepare to ask; arguments and errors are those of `Endpoint`."""
        self.settings = settings
        self._endpoint = Endpoint(settings, sleep=sleep, jitter=jitter)

    async def __aexit__(self, *error: object) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def reply(self, request: MessageRequest) -> MessageReply:
        """Answer one conversation. Raises: PolicyFailure: refused, or still failing after the last attempt."""
        return await self._endpoint.post(
            "/chat/completions", self._body(request), read_response, read_refusal=_full_context
        )

    def _body(self, request: MessageRequest) -> dict[str, Any]:  # JSON
        settings, sampling = self.settings, request.sampling
        body: dict[str, Any] = {
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
            body["tools"] = [tool_to_wire(spec) for spec in request.tools]
        return body


def _full_context(content: object) -> MessageReply | None:
    """Return the reply that says that the conversation is too long; None: it is refused for another reason."""
    if not says_context_is_full(content):
        return None
    return MessageReply(action=Action(), finish_reason=FinishReason.LENGTH, context_is_full=True)
