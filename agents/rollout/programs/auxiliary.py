"""Calls of models that are not trained, such as judges and simulated users: passed on as they are, and counted."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from envgym.agents.loop.program_settings import AuxiliarySettings
from envgym.agents.rollout.programs.dialects.base import CallDialect
from envgym.agents.rollout.programs.sessions import ProgramSession
from envgym.chats.fields import Json
from envgym.core.turns import Cost
from envgym.errors import InvalidInput, sentence
from envgym.runtime.http.server import JSON_TYPE, HttpReply, HttpRequest
from envgym.runtime.http.streams import EVENT_STREAM

if TYPE_CHECKING:  # loaded where a program has such models
    import httpx

_PASSED_ON: Final = ("anthropic-version", "anthropic-beta")
"""Headers of a request that the endpoint gets too."""
_PASSED_BACK: Final = ("retry-after", "x-should-retry")


class AuxiliaryModels:
    """Endpoints by the names under which programs call their models, for one event loop."""

    def __init__(self, endpoints: Mapping[str, AuxiliarySettings]) -> None:
        """Connect to nothing yet. Raises: InvalidInput: as `read_keys`."""
        self._endpoints, self._keys = dict(endpoints), read_keys(endpoints)
        self._client = _make_client() if endpoints else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._endpoints)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def forward(
        self, name: str, body: Json, request: HttpRequest, *, dialect: CallDialect, path: str, session: ProgramSession
    ) -> HttpReply:
        """Pass a call on, and return the whole answer, an error too.

        Args:
            name: of the model; one of `names`.
            body: of the request, decoded.
            request: the request itself, for its headers.
            dialect: its wire format.
            path: after the version.
            session: counts the cost.
        """
        import httpx

        endpoint, started = self._endpoints[name], time.perf_counter()
        url = endpoint.base_url.rstrip("/") + path
        content = json.dumps({**body, "model": endpoint.model or name}).encode()
        headers = {header: request.headers[header] for header in _PASSED_ON if header in request.headers}
        headers |= {"content-type": JSON_TYPE, **_authorization(dialect, self._keys.get(name))}
        assert self._client is not None, "there is an endpoint"
        try:
            answer = await self._client.post(url, content=content, headers=headers, timeout=endpoint.timeout_s)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            session.count_auxiliary(Cost(seconds=time.perf_counter() - started))
            status, got = HTTPStatus.BAD_GATEWAY, f"{type(error).__name__}: {error}".rstrip(": ")
            do = "start the service, or correct agent.program.auxiliary"
            detail = sentence("auxiliary model", "answer", got, where=f"{name} at {url}", do=do)
            return HttpReply.of_json(dialect.write_error(status, detail, is_context_full=False), status)
        form = answer.headers.get("content-type", JSON_TYPE)
        seconds = Cost(seconds=time.perf_counter() - started)
        session.count_auxiliary(seconds + read_usage(answer.content, is_stream=form.startswith(EVENT_STREAM)))
        back = {header: answer.headers[header] for header in _PASSED_BACK if header in answer.headers}
        return HttpReply(_status(answer.status_code), answer.content, form, back)


def _make_client() -> "httpx.AsyncClient":
    import httpx

    return httpx.AsyncClient()


def read_keys(endpoints: Mapping[str, AuxiliarySettings]) -> dict[str, str]:
    """Return the key of each endpoint that has one. Raises: InvalidInput: the variable of a key is not set."""
    keys: dict[str, str] = {}
    for name, endpoint in endpoints.items():
        if endpoint.api_key_env is not None:
            keys[name] = os.environ.get(endpoint.api_key_env, "")
            where, do = f"agent.program.auxiliary.{name}", "export the endpoint's key under this name"
            must, got = "hold a key", endpoint.api_key_env
            InvalidInput.unless(keys[name], "environment variable", must, got, where=where, do=do)
    return keys


def read_usage(body: bytes, *, is_stream: bool) -> Cost:
    """Return the tokens that an answer says it took, in any wire format; zeros where it says nothing.

    Args:
        body: of the answer.
        is_stream: whether it is a stream of events.
    """
    texts = [line.removeprefix(b"data:") for line in body.split(b"\n") if b'"usage"' in line] if is_stream else [body]
    usages = [usage for text in texts for usage in _usages(text)]
    details = [part for usage in usages for part in usage.values() if isinstance(part, dict)]
    prompt = _largest(usages, ("prompt_tokens", "input_tokens")) - _largest(details, ("cached_tokens",))
    generated = _largest(usages, ("completion_tokens", "output_tokens"))
    return Cost(tokens_generated=generated, tokens_prefilled=max(prompt, 0))


def _usages(text: bytes) -> Iterator[Json]:
    """Yield the numbers of tokens in an answer, or in one event of it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        for part in (value, value.get("response"), value.get("message")):
            if isinstance(part, dict) and isinstance(part.get("usage"), dict):
                yield part["usage"]


def _largest(parts: Sequence[Json], names: Sequence[str]) -> int:
    counts = [part.get(name) for part in parts for name in names]
    return max((count for count in counts if isinstance(count, int)), default=0)


def _authorization(dialect: CallDialect, key: str | None) -> dict[str, str]:
    if key is None:
        return {}
    return {"x-api-key": key} if dialect.name == "messages" else {"authorization": f"Bearer {key}"}


def _status(code: int) -> HTTPStatus:
    """Return the status of an answer; some services have numbers of their own."""
    try:
        return HTTPStatus(code)
    except ValueError:
        return HTTPStatus.SERVICE_UNAVAILABLE
