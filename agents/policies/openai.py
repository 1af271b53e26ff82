"""A message-level policy over any endpoint that speaks the OpenAI chat-completions protocol.

Use it as an async context manager. What may pass (429, 5xx, time-outs, broken connections, broken bodies) is tried
again after a growing, jittered pause, or after the one that the endpoint asks for; what will not pass fails at once.
"""

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self

import httpx
from pydantic import Field

from envgym.agents.message_driver import MessageReply, MessageRequest
from envgym.agents.policies._chat_wire import (
    BadResponse,
    error_text,
    messages_to_wire,
    read_response,
    says_context_is_full,
    tool_to_wire,
)
from envgym.agents.protocols import FinishReason
from envgym.core.messages import Action
from envgym.errors import InvalidInput, PolicyFailure, sentence
from envgym.settings import Settings

_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may succeed."""
_SEED_BITS = 0x7FFFFFFF
"""Seeds are sent as 31 bits: some endpoints take no more."""
_SHOWN = 300


class EndpointSettings(Settings):
    """An endpoint, and how hard it may be used."""

    base_url: str
    """Up to and with the version, such as `http://localhost:8000/v1`."""
    model: str
    """What the endpoint calls its model."""
    api_key_env: str | None = None
    """Environment variable that holds the key; None: no key is sent."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for one answer."""
    max_retries: int = Field(default=5, ge=0)
    """Further attempts after the first."""
    backoff_s: float = Field(default=0.5, ge=0)
    """Pause before the second attempt; doubled for each further one."""
    max_backoff_s: float = Field(default=60.0, ge=0)
    """Longest pause, also where the endpoint asks for a longer one."""
    max_concurrency: int = Field(default=32, ge=1)
    """Requests under way at a time."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Requests are spaced evenly to keep this rate; None: as fast as they come."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the endpoint calls the limit of a reply."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request; they replace ours of the same name."""
    omit: tuple[str, ...] = ()
    """Fields of ours that the endpoint refuses, such as `seed`."""


class OpenAIPolicy:
    """Asks an endpoint, within its limits."""

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Prepare to ask.

        Args:
            settings: endpoint and limits.
            sleep: waits for some seconds.
            jitter: draws from [0, 1); a pause is shortened by up to half of it.

        Raises: InvalidInput: the variable that is to hold the key is not set.
        """
        self.settings = settings
        headers = {}
        if settings.api_key_env is not None:
            key = os.environ.get(settings.api_key_env)
            if not key:
                do = "export the endpoint's key under this name"
                raise InvalidInput(
                    sentence("environment variable", "hold a key", settings.api_key_env, where="endpoint", do=do)
                )
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(settings.timeout_s, pool=None),
            limits=httpx.Limits(max_connections=settings.max_concurrency),
        )
        self._url = settings.base_url.rstrip("/") + "/chat/completions"
        self._under_way = asyncio.Semaphore(settings.max_concurrency)
        self._next_slot = 0.0
        self._sleep, self._jitter = sleep, jitter

    async def __aenter__(self) -> Self:
        """Return the policy."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def reply(self, request: MessageRequest) -> MessageReply:
        """Answer one conversation. Raises: PolicyFailure: refused, or still failing after the last attempt."""
        body = self._body(request)
        async with self._under_way:
            for attempt in range(self.settings.max_retries + 1):
                await self._wait_for_slot()
                reply, reason, asked_pause = await self._attempt(body)
                if reply is not None:
                    return reply
                if attempt < self.settings.max_retries:
                    await self._sleep(self._pause(attempt, asked_pause))
        tries = self.settings.max_retries + 1
        raise PolicyFailure(f"{self._url} gave no answer in {tries} attempts; the last one: {reason}")

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
        return {key: value for key, value in (body | settings.extra_body).items() if key not in settings.omit}

    async def _attempt(self, body: Mapping[str, Any]) -> tuple[MessageReply | None, str, float | None]:  # JSON
        """Return (reply, why there is none, the pause that the endpoint asks for). Raises: PolicyFailure: refused."""
        try:
            response = await self._client.post(self._url, json=body)
        except httpx.TransportError as error:
            return None, f"{type(error).__name__}: {error}".rstrip(": "), None
        try:
            content = response.json()
        except json.JSONDecodeError:
            content = response.text
        if response.status_code in _PASSING:
            return None, _said(response.status_code, content), _retry_after(response)
        if response.status_code == httpx.codes.BAD_REQUEST and says_context_is_full(content):
            full = MessageReply(action=Action(), finish_reason=FinishReason.LENGTH, context_is_full=True)
            return full, "", None
        if not response.is_success:
            raise PolicyFailure(f"{self._url} refused the request: {_said(response.status_code, content)}")
        try:
            return read_response(content), "", None
        except BadResponse as error:
            return None, f"{error}: {str(content)[:_SHOWN]}", None

    def _pause(self, attempt: int, asked: float | None) -> float:
        settings = self.settings
        grown = asked if asked is not None else settings.backoff_s * 2**attempt
        longest = min(grown, settings.max_backoff_s)
        return longest if asked is not None else longest * (1 - self._jitter() / 2)

    async def _wait_for_slot(self) -> None:
        """Keep the rate: every request takes the next of evenly spaced moments."""
        if self.settings.requests_per_minute is None:
            return
        now = asyncio.get_running_loop().time()
        slot = max(now, self._next_slot)
        self._next_slot = slot + 60.0 / self.settings.requests_per_minute
        if slot > now:
            await self._sleep(slot - now)


def _said(status: int, content: object) -> str:
    return f"{status} {error_text(content)}"[:_SHOWN]


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds that the endpoint asks for; a date is left to our own backoff."""
    try:
        return max(float(response.headers.get("Retry-After", "")), 0.0)
    except ValueError:
        return None
