"""Ask a service over HTTP, as hard as its settings allow, and read what it answers.

What may pass (429, 5xx, time-outs, broken connections, broken bodies) is tried again after a growing, jittered pause,
or after the one that the service asks for; what will not pass fails at once.
"""

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import httpx

from envgym.agents.settings import EndpointSettings
from envgym.chats.replies import BadResponse, get_nested
from envgym.errors import InvalidInput, PolicyFailure
from envgym.runtime.backoff import PASSING, Backoff, read_retry_after

Json = dict[str, Any]
"""A body that is sent."""
T = TypeVar("T")
ReadRefusal = Callable[[int, object], T | None]
"""(status, body) -> the answer that an error stands for, if it stands for one."""
Sleep = Callable[[float], Awaitable[object]]
"""Waits for some seconds."""
_PASSING = PASSING | {409}
"""Statuses after which the same request may succeed."""
_SHOWN = 300


class Endpoint:
    """Connections to one endpoint, used within its limits and from one event loop."""

    def __init__(
        self, settings: EndpointSettings, *, sleep: Sleep = asyncio.sleep, jitter: Callable[[], float] = random.random
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
                got, do = settings.api_key_env, "export the endpoint's key under this name"
                raise InvalidInput.of("environment variable", "hold a key", got, where="endpoint", do=do)
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(settings.timeout_s, pool=None),
            limits=httpx.Limits(max_connections=settings.max_concurrency),
        )
        self.url = settings.base_url.rstrip("/")
        self._under_way = asyncio.Semaphore(settings.max_concurrency)
        self._next_slot = 0.0
        self._sleep, self._jitter = sleep, jitter

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, read: Callable[[object], T]) -> T:
        """Return a page as `read` parses it. Raises: PolicyFailure: as `post`."""
        return await self._ask(self.url + path, None, read, lambda status, content: None)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],  # JSON
        read: Callable[[object], T],
        *,
        read_refusal: ReadRefusal[T] = lambda status, content: None,
    ) -> T:
        """Send a body, and return what `read` makes of the answer.

        Args:
            path: after the base URL.
            body: what is sent, before the fields of the settings are added and left out.
            read: reads the answer; BadResponse: it is tried again.
            read_refusal: reads the status and body of an error before anything is tried again; None: the request has
                failed. Some services send an error with status 200, or with the status of a fault of their own.

        Raises: PolicyFailure: refused, or still failing after the last attempt. Whatever else `read` raises.
        """
        settings = self.settings
        payload = {key: value for key, value in {**body, **settings.extra_body}.items() if key not in settings.omit}
        return await self._ask(self.url + path, payload, read, read_refusal)

    async def _ask(
        self,
        url: str,
        body: Mapping[str, Any] | None,  # JSON
        read: Callable[[object], T],
        read_refusal: ReadRefusal[T],
    ) -> T:
        reason = ""
        async with self._under_way:
            for attempt in range(self.settings.max_retries + 1):
                await self._wait_for_slot()
                requested_pause = None
                try:
                    response = await (self._client.get(url) if body is None else self._client.post(url, json=body))
                    content = _content(response)
                    if not response.is_success or (isinstance(content, Mapping) and content.get("error")):
                        refusal = read_refusal(response.status_code, content)
                        if refusal is not None:
                            return refusal
                    if response.is_success:
                        return read(content)
                    if response.status_code not in _PASSING:
                        message = _describe(response.status_code, content)
                        raise PolicyFailure(f"{url} refused the request: {message}")
                    reason = _describe(response.status_code, content)
                    requested_pause = read_retry_after(response.headers.get("Retry-After"))
                except httpx.TransportError as error:
                    reason = f"{type(error).__name__}: {error}".rstrip(": ")
                except BadResponse as error:
                    reason = f"{error}: {str(content)[:_SHOWN]}"
                if attempt < self.settings.max_retries:
                    await self._sleep(self._pause(attempt, requested_pause))
        tries = self.settings.max_retries + 1
        raise PolicyFailure(f"{url} did not answer in {tries} attempts; the last error: {reason}")

    def _pause(self, attempt: int, requested: float | None) -> float:
        settings = self.settings
        if requested is not None:
            return min(requested, settings.max_backoff_s)
        return Backoff(settings.backoff_s, settings.max_backoff_s).pause_s(attempt, jitter=self._jitter())

    async def _wait_for_slot(self) -> None:
        """Keep the rate: every request takes the next of evenly spaced moments."""
        if self.settings.requests_per_minute is None:
            return
        now = asyncio.get_running_loop().time()
        slot = max(now, self._next_slot)
        self._next_slot = slot + 60.0 / self.settings.requests_per_minute
        if slot > now:
            await self._sleep(slot - now)


def _content(response: httpx.Response) -> object:
    try:
        content: object = response.json()
    except json.JSONDecodeError:
        content = response.text
    return content


def _describe(status: int, content: object) -> str:
    return f"{status} {error_text(content)}"[:_SHOWN]


def read_count(body: object, *keys: str) -> int:
    """Return a number of tokens; 0 where the service does not state it."""
    value = get_nested(body, *keys)
    return value if isinstance(value, int) else 0


def error_text(body: object) -> str:
    """Return the message of an error body of any shape."""
    if isinstance(body, Mapping):
        error = body.get("error", body.get("message", body))
        if isinstance(error, Mapping):
            error = error.get("message", error)
        return str(error)
    return str(body)
