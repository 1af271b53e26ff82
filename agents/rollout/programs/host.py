"""The HTTP server by which programs call the model: one for a rollout process, with one session for each program.

A program finds its session by a secret, in the path (`/s/SECRET/v1/...`) or as API key. The path counts if it names a
session, because programs may send keys of their own.
"""

import asyncio
import json
import logging
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Final
from weakref import WeakKeyDictionary

from envgym.agents.loop.program_settings import POLICY_MODEL, AuxiliarySettings
from envgym.agents.rollout.programs.auxiliary import AuxiliaryModels
from envgym.agents.rollout.programs.calls import CallRefused, CallReply, RefusalKind
from envgym.agents.rollout.programs.dialects.base import REQUEST, CallDialect, CallRequest, ReplyIds
from envgym.agents.rollout.programs.dialects.chat import openai_error
from envgym.agents.rollout.programs.env_tools import MCP_PATH, answer_mcp
from envgym.agents.rollout.programs.results import read_reward
from envgym.agents.rollout.programs.sessions import (
    CLOSED,
    IDEMPOTENCY_KEY,
    RETRY_COUNT,
    Exchange,
    ProgramSession,
    RetryMark,
)
from envgym.chats.fields import Json
from envgym.core.json_types import JsonObject, JsonValue
from envgym.errors import InvalidInput, sentence
from envgym.parsing.strict_json import read_json
from envgym.runtime.http.server import AnyReply, HttpLimits, HttpReply, HttpRequest, HttpServer
from envgym.runtime.http.streams import EVENT_STREAM, HttpStream

_log = logging.getLogger(__name__)
KEEP_ALIVE_S: Final = 10.0
"""Between two signs of life of a streamed reply; a reply that is there within the first interval needs none."""
_KEEP_ALIVE: Final = b": keep-alive\n\n"
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""Of an escape that stands for half a character."""
_MAX_BODY_BYTES: Final = 64 << 20
_MAX_CLOSED: Final = 4096
"""Closed sessions whose secrets are remembered, so that late calls get the right error."""
_NO_RETRY: Final[Mapping[str, str]] = {"x-should-retry": "false"}
"""Keeps libraries from repeating what cannot succeed."""
_NO_MODELS: Final[Mapping[str, AuxiliarySettings]] = MappingProxyType({})
_STATUS: Final = {
    RefusalKind.CONTEXT_FULL: HTTPStatus.BAD_REQUEST,
    RefusalKind.UNSUPPORTED: HTTPStatus.BAD_REQUEST,
    RefusalKind.TURN_LIMIT: HTTPStatus.BAD_REQUEST,
    RefusalKind.POLICY_FAILED: HTTPStatus.SERVICE_UNAVAILABLE,
    RefusalKind.CLOSED: HTTPStatus.CONFLICT,
}


@dataclass(frozen=True, slots=True)
class _Response:
    """A reply in the form that a request wants."""

    dialect: CallDialect
    request: CallRequest
    session: ProgramSession

    def of(self, reply: CallReply | CallRefused, exchange: Exchange | None) -> HttpReply:
        """Return the whole response; of an exchange, its end is reported to the session."""
        if isinstance(reply, CallRefused):
            return _refusal(self.dialect, reply)
        ids, on_sent = self.session.next_ids() if exchange is None else exchange.ids, None
        if exchange is not None:
            self.remember(reply, ids)
            on_sent = partial(self.sent, exchange)
        if not self.request.is_streamed:
            return HttpReply.of_json(self.dialect.write(self.request, reply, ids))._replace(on_sent=on_sent)
        body = b"".join(self.dialect.write_events(self.request, reply, ids))
        return HttpReply(HTTPStatus.OK, body, EVENT_STREAM, on_sent=on_sent)

    async def stream(self, exchange: Exchange) -> AsyncGenerator[bytes, None]:
        """Yield signs of life until the reply is there, then the reply; or an error, if there is none."""
        while not exchange.result.done():
            yield _KEEP_ALIVE
            await asyncio.wait([exchange.result], timeout=KEEP_ALIVE_S)
        reply = await self.session.result(exchange)
        if isinstance(reply, CallRefused):
            yield self.dialect.write_error_event(_STATUS[reply.kind], reply.reason)
            return
        self.remember(reply, exchange.ids)
        for part in self.dialect.write_events(self.request, reply, exchange.ids):
            yield part
        self.session.delivered(exchange)  # some clients leave after the last event, before the end of the body

    def sent(self, exchange: Exchange, is_sent: bool) -> None:  # as the server calls it
        if not is_sent:
            exchange.num_waiting -= 1
        elif not exchange.result.cancelled() and isinstance(exchange.result.result(), CallReply):
            self.session.delivered(exchange)

    def remember(self, reply: CallReply, ids: ReplyIds) -> None:
        if self.dialect.has_transcripts:
            messages = self.request.call.messages[self.request.num_standing :]
            self.session.transcripts[self.dialect.response_id(ids)] = (*messages, reply.message)


class ProgramHost:
    """Serves the sessions of programs on a loopback address; `listen`, then `close`, in one event loop."""

    def __init__(
        self,
        dialects: Sequence[CallDialect],
        *,
        refuses: bool = False,
        auxiliary: Mapping[str, AuxiliarySettings] = _NO_MODELS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Serve no session yet.

        Args:
            dialects: The wire formats that are answered.
            refuses: Whether options that would be ignored are refused.
            auxiliary: Endpoints of other models, by the names in requests.
            now: Seconds since 1970.

        Raises: InvalidInput: the key of an endpoint is missing.
        """
        self._auxiliary = AuxiliaryModels(auxiliary)
        self.http = HttpServer(
            self._handle,
            limits=HttpLimits(body_bytes=_MAX_BODY_BYTES),
            error_form=lambda status, detail: _error(status, openai_error(status, detail, is_context_full=False)),
            cancels_abandoned=True,
        )
        self.now = now
        self._dialects, self._refuses = tuple(dialects), refuses
        self._sessions: dict[str, ProgramSession] = {}
        self._closed: deque[str] = deque(maxlen=_MAX_CLOSED)
        self._warned: set[str] = set()
        """Names of ignored options that the log has."""

    async def listen(self) -> None:
        """Begin to answer, on a free port of 127.0.0.1."""
        await self.http.listen("127.0.0.1", 0)

    async def close(self) -> None:
        """Close every session, and answer no more."""
        for session in list(self._sessions.values()):
            await self.end(session)
        await self.http.close()
        await self._auxiliary.close()

    def begin(self, session: ProgramSession) -> None:
        """Answer the calls of a session."""
        self._sessions[session.secret] = session

    async def end(self, session: ProgramSession) -> None:
        """Close a session; later calls get the status 409."""
        if self._sessions.pop(session.secret, None) is not None:
            self._closed.append(session.secret)
        await session.close()

    def url_of(self, session: ProgramSession) -> str:
        """Return the address of a session, without the version that most libraries expect at its end."""
        return f"{self.http.url}/s/{session.secret}"

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _handle(self, request: HttpRequest) -> AnyReply | Awaitable[AnyReply]:
        secret, path = _split(request)
        dialect = next((item for item in self._dialects if path.startswith(item.path)), self._dialects[0])
        session = self._sessions.get(secret)
        if session is None:
            return self._no_session(dialect, is_closed=secret in self._closed)
        if path == MCP_PATH and session.env_tools is not None:
            return answer_mcp(session.env_tools, request)
        if request.method == "GET":
            return self._models(path)
        if path == "/reward":
            return _post_reward(session, request.body)
        if path not in (dialect.path, dialect.count_path):
            return _not_found(path, self._paths)
        try:
            body = _decode(request.body)
            if body.get("model") in self._auxiliary.names:
                name = body["model"]
                work = self._auxiliary.forward(name, body, request, dialect=dialect, path=path, session=session)
                return asyncio.ensure_future(work)
            call_request = self._read(dialect, session, body)
        except InvalidInput as error:
            status = HTTPStatus.BAD_REQUEST
            return _error(status, dialect.write_error(status, str(error), is_context_full=False))
        if path == dialect.count_path:
            return _count(dialect, session, call_request)
        return self._answer(_Response(dialect, call_request, session), request)

    @property
    def _paths(self) -> list[str]:
        return ["/models", "/reward", *(dialect.path for dialect in self._dialects)]

    def _models(self, path: str) -> HttpReply:
        names = (POLICY_MODEL, *self._auxiliary.names)
        models: dict[str, Json] = {
            f"/models/{name}": {"id": name, "object": "model", "created": 0, "owned_by": "envgym"} for name in names
        }
        if path == "/models":
            data: list[JsonValue] = [*models.values()]
            return HttpReply.of_json({"object": "list", "data": data})
        return HttpReply.of_json(models[path]) if path in models else _not_found(path, self._paths)

    def _no_session(self, dialect: CallDialect, *, is_closed: bool) -> HttpReply:
        if is_closed:
            return _refusal(dialect, CLOSED)
        status, do = HTTPStatus.UNAUTHORIZED, "use the base URL and the API key that the program was given"
        detail = sentence("API key or path", "name a session", "another", where=self.http.url, do=do)
        return _error(status, dialect.write_error(status, detail, is_context_full=False))

    def _read(self, dialect: CallDialect, session: ProgramSession, body: Json) -> CallRequest:
        request = dialect.read(body, refuses=self._refuses, transcripts=session.transcripts)
        session.counts.ignored_options.update(request.ignored)
        for name in set(request.ignored) - self._warned:
            self._warned.add(name)
            do = "leave it out, or set agent.program.unsupported: refuse"
            _log.warning("%s", sentence(name, "be left out", "a value that has no effect", where=REQUEST, do=do))
        return request

    def _answer(self, response: _Response, request: HttpRequest) -> "AnyReply | asyncio.Future[AnyReply]":
        headers = request.headers
        mark = RetryMark.of(request.body, headers.get(IDEMPOTENCY_KEY), headers.get(RETRY_COUNT, ""))
        exchange = response.session.begin(response.request.call, mark)
        if isinstance(exchange, CallReply | CallRefused):
            return response.of(exchange, None)
        return asyncio.ensure_future(_reply(response, exchange))


@dataclass(slots=True, eq=False)
class _SharedHost:
    host: ProgramHost
    listening: "asyncio.Future[None]"
    num_users: int = 0


_shared_hosts: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, _SharedHost]]" = WeakKeyDictionary()


@asynccontextmanager
async def shared_host(
    dialects: Sequence[CallDialect], *, refuses: bool, auxiliary: Mapping[str, AuxiliarySettings] = _NO_MODELS
) -> AsyncIterator[ProgramHost]:
    """Yield the host of this event loop for these formats, which listens until its last user has left it.

    Args and Raises: as of `ProgramHost`. Users end the sessions that they begin.
    """
    hosts = _shared_hosts.setdefault(asyncio.get_running_loop(), {})
    key = (*(dialect.name for dialect in dialects), refuses, frozenset(auxiliary.items()))
    if key not in hosts:
        host = ProgramHost(dialects, refuses=refuses, auxiliary=auxiliary)
        hosts[key] = _SharedHost(host, asyncio.ensure_future(host.listen()))
    shared = hosts[key]
    shared.num_users += 1
    try:
        await asyncio.shield(shared.listening)
        yield shared.host
    finally:
        shared.num_users -= 1
        if shared.num_users == 0:
            del hosts[key]
            await asyncio.wait([shared.listening])
            await shared.host.close()


async def _reply(response: _Response, exchange: Exchange) -> AnyReply:
    try:
        if response.request.is_streamed:
            await asyncio.wait([exchange.result], timeout=KEEP_ALIVE_S)
            if not exchange.result.done():
                on_sent = partial(response.sent, exchange)
                return HttpStream(HTTPStatus.OK, response.stream(exchange), on_sent=on_sent)
        return response.of(await response.session.result(exchange), exchange)
    except asyncio.CancelledError:
        exchange.num_waiting -= 1
        raise


def _split(request: HttpRequest) -> tuple[str, str]:
    """Return the secret of a request, and its path without secret and version."""
    path, secret = request.path, ""
    if path.startswith("/s/"):
        secret, slash, rest = path.removeprefix("/s/").partition("/")
        path = slash + rest
    while path.startswith("/v1/"):
        path = path.removeprefix("/v1")
    key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return secret or request.headers.get("x-api-key", "") or key, path.rstrip("/")


def _decode(body: bytes) -> Json:
    """Decode a body. Raises: InvalidInput: it is no JSON object."""
    do = "send a JSON object"
    try:
        # the strict reader refuses lone surrogates and takes ten times as long
        data: object = read_json(body.decode()) if _SURROGATE.search(body) else json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput.of("body", "be JSON", str(error), where=REQUEST, do=do) from None
    if not isinstance(data, dict):
        raise InvalidInput.of("body", "be a JSON object", data, where=REQUEST, do=do)
    return data


def _post_reward(session: ProgramSession, body: bytes) -> HttpReply:
    status = HTTPStatus.BAD_REQUEST
    try:
        reward = read_reward(_decode(body), where=REQUEST)
        status = HTTPStatus.CONFLICT
        session.post_reward(reward)
    except InvalidInput as error:
        return _error(status, openai_error(status, str(error), is_context_full=False))
    return HttpReply.of_json({"status": "ok"})


def _count(dialect: CallDialect, session: ProgramSession, request: CallRequest) -> HttpReply:
    num_tokens = session.count_tokens(request.call)
    if num_tokens is None:
        status, detail = HTTPStatus.NOT_IMPLEMENTED, "The tokens of this model cannot be counted without calling it."
        return _error(status, dialect.write_error(status, detail, is_context_full=False))
    return HttpReply.of_json({"input_tokens": num_tokens})


def _not_found(path: str, paths: Sequence[str]) -> HttpReply:
    status, do = HTTPStatus.NOT_FOUND, f"use one of {', '.join(paths)}, or add a format to agent.program.dialects"
    detail = sentence("path", "be one that is answered", path, where=REQUEST, do=do)
    return _error(status, openai_error(status, detail, is_context_full=False))


def _refusal(dialect: CallDialect, refusal: CallRefused) -> HttpReply:
    status, is_full = _STATUS[refusal.kind], refusal.kind is RefusalKind.CONTEXT_FULL
    return _error(status, dialect.write_error(status, refusal.reason, is_context_full=is_full))


def _error(status: HTTPStatus, data: JsonObject) -> HttpReply:
    return HttpReply.of_json(data, status)._replace(headers=_NO_RETRY)
