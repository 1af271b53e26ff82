"""Environments as an OpenEnv server: one env for each WebSocket connection, and the HTTP routes that describe it.

The first environment is served at `/ws`; each is also served at `/<id>/ws`. The wire is OpenEnv's, the code is not: its
package is not needed.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from envgym.connect.openenv_frames import (
    MAX_FRAME_BYTES,
    ErrorCode,
    FrameError,
    Query,
    RpcError,
    decode,
    error_frame,
    read_frame,
    rpc_failure,
    rpc_frame,
)
from envgym.connect.openenv_routes import Answer, NotSupported, env_routes, path_of, task_routes
from envgym.connect.openenv_session import OpenEnvSession, check_tool_names
from envgym.connect.uvicorn_server import listening_socket, uvicorn_server
from envgym.errors import EnvFailure, InvalidInput
from envgym.runtime.error_log import log_error
from envgym.runtime.event_loop import in_daemon_thread
from envgym.runtime.http.access import address_url, check_token, is_loopback, refusal
from envgym.serving.sessions import SessionLimits
from envgym.serving.templates import EnvTemplate, Templates

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send
    from starlette.websockets import WebSocket

_PACKAGES: Final = ("starlette", "uvicorn", "websockets")
_MAX_HELPERS: Final = 64
"""Requests that may be in a thread at once; one that hangs keeps its place."""
_MAX_CONNECTIONS: Final = 2048
_PING_S: Final = 20.0
_CLOSE_S: Final = 20.0
"""Within which all envs must be closed when the server ends."""
_MAX_BODY_BYTES: Final = 1 << 20
_NORMAL, _TRY_AGAIN, _FAILED = 1000, 1013, 1011
"""Codes with which a WebSocket connection is closed."""


def check_installed() -> None:
    """Check that the extra is installed. Raises: InvalidInput."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        must, do = "find what it imports", "pip install 'envgym[openenv]'"
        raise InvalidInput.of("OpenEnv server", must, f"no {missing[0]}", where="envgym serve", do=do)


class OpenEnvServer:
    """Serves environments; `listen`, then `close`, in one event loop."""

    def __init__(self, templates: Templates, *, token: str | None = None, limits: SessionLimits | None = None) -> None:
        """Serve nothing yet. Raises: InvalidInput: a package is missing, or a tool has a name that is reserved."""
        check_installed()
        self.limits, self.url = limits or SessionLimits(), ""
        self.num_sessions = self.num_refused = 0
        """`num_sessions` are open, those that are being closed included; `num_refused` found no room."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._token, self._is_local = token, True
        self._envs = {env_id: templates.get(env_id, {}) for env_id in templates.env_ids}
        for env_id, template in self._envs.items():
            check_tool_names(template.tools, env_id)
        self._helpers = asyncio.Semaphore(_MAX_HELPERS)
        """For POST requests, which may wait for an env or its tasks."""
        self._app = self._make_app()

    async def listen(self, host: str, port: int) -> str:
        """Start to answer; return the address. Raises: InvalidInput: it cannot be used, or needs a token."""
        check_token(host, self._token)
        listener = listening_socket(host, port)
        self.url, self._is_local = address_url(host, listener.getsockname()[1]), is_loopback(host)
        self._server = uvicorn_server(
            self._serve,
            asyncio.Event(),
            http="h11",
            ws="websockets-sansio",
            ws_max_size=MAX_FRAME_BYTES,
            ws_ping_interval=_PING_S,
            ws_ping_timeout=self.limits.lease_s,
            ws_per_message_deflate=False,
            limit_concurrency=max(_MAX_CONNECTIONS, 2 * self.limits.sessions),
            timeout_graceful_shutdown=int(_CLOSE_S),
        )
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        return self.url

    async def close(self) -> int:
        """Stop answering, and close every env; return the number of envs that did not close in time."""
        self._server.should_exit = True
        await self._serving
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._idle.wait()
        return self.num_sessions

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _make_app(self) -> Callable[..., Any]:  # an ASGI application
        from starlette.applications import Starlette
        from starlette.routing import Route, WebSocketRoute

        def routes_below(prefix: str, answers: Mapping[tuple[str, str], Answer]) -> list[Route]:
            return [
                Route(f"{prefix}{path}", partial(self._answer_http, answer=answer), methods=[method])
                for (method, path), answer in answers.items()
            ]

        listed: Mapping[tuple[str, str], Answer] = {("GET", "/list_environments"): lambda _: list(self._envs)}
        routes: list[Route | WebSocketRoute] = []
        for number, template in enumerate(self._envs.values()):
            own_path = path_of(template.env_id)
            for prefix in ("", own_path) if number == 0 else (own_path,):
                routes.append(WebSocketRoute(f"{prefix}/ws", partial(self._play, template=template)))
                routes += routes_below(prefix, {**listed, **env_routes(template)})
            for prefix in ("", own_path):
                routes += routes_below(prefix, task_routes(template))
        return Starlette(routes=routes)

    async def _serve(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer a request or a connection, unless the client may not have an answer."""
        from starlette.datastructures import Headers
        from starlette.responses import JSONResponse
        from starlette.websockets import WebSocket

        refused = refusal(Headers(scope=scope), url=self.url, is_local=self._is_local, token=self._token)
        if refused is None:
            await self._app(scope, receive, send)
            return
        response = JSONResponse({"detail": refused[1]}, refused[0])
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(response)
            await asyncio.sleep(0)  # uvicorn logs an error about a task that ends before its connection
        else:
            await response(scope, receive, send)

    async def _answer_http(self, request: "Request", *, answer: Answer) -> "Response":
        """Answer an HTTP request; `answer` takes the decoded body and returns JSON. A POST may wait, in a thread."""
        from starlette.responses import JSONResponse

        try:
            if request.method == "POST":
                value = await self._in_thread(partial(answer, await _body(request)), where=request.url.path)
            else:
                value = answer({})
        except _LateError as error:
            return JSONResponse({"detail": str(error)}, HTTPStatus.SERVICE_UNAVAILABLE)
        except NotSupported as error:
            return JSONResponse({"detail": str(error)}, HTTPStatus.NOT_IMPLEMENTED)
        except InvalidInput as error:
            return JSONResponse({"detail": str(error)}, HTTPStatus.BAD_REQUEST)
        except Exception as error:  # noqa: BLE001  # what an env raises is the answer
            log_error(error, f"{request.url.path} failed")
            return JSONResponse({"detail": f"{type(error).__name__}: {error}"}, HTTPStatus.INTERNAL_SERVER_ERROR)
        return JSONResponse(value)

    async def _in_thread(self, work: Callable[[], Any], *, where: str) -> Any:  # what the work returns
        """Do work that may block. Raises: _LateError: it takes too long, or no thread is free for too long."""

        def note_end(helper: asyncio.Future[Any]) -> None:
            self._helpers.release()
            if not helper.cancelled():
                helper.exception()  # of work that nobody waits for any more

        limit = asyncio.timeout(self.limits.call_s)
        try:
            async with limit:
                await self._helpers.acquire()
                helper = asyncio.ensure_future(in_daemon_thread(work))
                helper.add_done_callback(note_end)
                return await asyncio.shield(helper)
        except TimeoutError as error:
            if not limit.expired():
                raise
            must, do = f"take at most {self.limits.call_s:g} s", "send the request again, or raise --call-seconds"
            raise _LateError.of("answer", must, "more", where=where, do=do) from error

    # ---- sessions ----------------------------------------------------------------------------------------------------

    async def _play(self, websocket: "WebSocket", *, template: EnvTemplate) -> None:
        """Hold a session for a connection."""
        from starlette.websockets import WebSocketDisconnect

        await websocket.accept()
        try:
            if self.num_sessions >= self.limits.sessions:
                self.num_refused += 1
                must, do = f"have one of its {self.limits.sessions} sessions free", "wait, or raise --sessions"
                message = str(EnvFailure.of("server", must, "none", where=self.url, do=do))
                await _end(websocket, error_frame(message, ErrorCode.CAPACITY_REACHED), _TRY_AGAIN)
                return
            self.num_sessions += 1
            self._idle.clear()
            calls = _Calls(template, self.limits.call_s)
            try:
                await self._hold(websocket, calls)
            finally:
                calls.close(self._note_closed)
        except WebSocketDisconnect:
            pass  # the client left, and nobody waits for an answer

    def _note_closed(self) -> None:
        self.num_sessions -= 1
        if not self.num_sessions:
            self._idle.set()

    async def _hold(self, websocket: "WebSocket", calls: "_Calls") -> None:
        """Answer frames until the client leaves or the session ends."""
        try:
            await calls.open()
        except Exception as error:  # noqa: BLE001  # whatever a constructor raises
            log_error(error, f"{calls.template.env_id} could not be made")
            await _end(websocket, error_frame(_described(error), ErrorCode.FACTORY_ERROR), _FAILED)
            return
        while True:
            try:
                async with asyncio.timeout(self.limits.idle_s):
                    message = await websocket.receive()
            except TimeoutError:
                must, do = f"be called every {self.limits.idle_s:g} s", "connect again, or raise --idle-seconds"
                silence = EnvFailure.of("session", must, "no call", where=self.url, do=do)
                await _end(websocket, error_frame(str(silence), ErrorCode.SESSION_ERROR), _FAILED)
                return
            if message["type"] == "websocket.disconnect":
                return
            reply, is_over = await calls.answer(message.get("text"))
            if is_over:
                await _end(websocket, reply, _FAILED if reply else _NORMAL)
                return
            await websocket.send_text(reply)


class _LateError(EnvFailure):
    """An HTTP request was not answered in time."""


class _Calls:
    """The calls of one session's env: in the event loop, or in a thread of the session if they may wait."""

    def __init__(self, template: EnvTemplate, call_s: float) -> None:
        self.template, self._call_s = template, call_s
        self._session: OpenEnvSession | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """Make the env. Raises: whatever its constructor raises."""
        await self._call(self._make)

    async def answer(self, text: str | None) -> tuple[str, bool]:
        """Return the frame that answers a client's frame, and whether the session is over; no frame: it was closed."""
        try:
            if text is None:
                message = "frame must be text, got bytes (OpenEnv frame); send JSON as text."
                raise FrameError(message, ErrorCode.INVALID_JSON)
            frame = read_frame(text)
            if frame is Query.CLOSE:
                return "", True
            assert self._session is not None, "opened before"
            return await self._call(partial(self._session.answer, frame)), False
        except FrameError as error:
            return error_frame(str(error), error.code), False
        except RpcError as error:
            return rpc_frame(rpc_failure(error)), False
        except Exception as error:  # noqa: BLE001  # whatever an env raises ends the session, and is no reward
            log_error(error, f"a session of {self.template.env_id} ended")
            return error_frame(_described(error), ErrorCode.EXECUTION_ERROR), True

    def close(self, then: Callable[[], None]) -> None:
        """Close the env after the call that is running, and call `then` when it is closed."""
        if self._thread is None:
            self._close_env()
            then()
            return
        done = asyncio.get_running_loop().run_in_executor(self._thread, self._close_env)
        done.add_done_callback(lambda _: then())
        self._thread.shutdown(wait=False)

    def _make(self) -> None:
        self._session = OpenEnvSession(self.template.env_id, self.template.make, self.template.tools)

    async def _call(self, work: Callable[[], Any]) -> Any:  # what the work returns
        """Do work with the env. Raises: EnvFailure: it takes too long. Whatever the work raises."""
        if self._thread is None and self.template.needs_thread:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="openenv-session")
        if self._thread is None:
            started = monotonic()
            try:
                return work()
            finally:
                self.template.note_seconds(monotonic() - started)
        try:
            async with asyncio.timeout(self._call_s):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError as error:
            must, do = f"take at most {self._call_s:g} s", "raise --call-seconds"
            raise EnvFailure.of("call of the env", must, "more", where=self.template.env_id, do=do) from error

    def _close_env(self) -> None:
        if self._session is not None:
            try:
                self._session.close()
            except Exception as error:  # noqa: BLE001  # the session is over whatever an env's close raises
                log_error(error, f"close of {self.template.env_id} failed")


async def _end(websocket: "WebSocket", frame: str, code: int) -> None:
    if frame:
        await websocket.send_text(frame)
    await websocket.close(code)


async def _body(request: "Request") -> Any:  # JSON
    """Return the decoded body; an empty one is an empty object. Raises: InvalidInput: it is too long, or no JSON."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            do = "play in a session, at /ws"
            raise InvalidInput.of("body", f"have at most {_MAX_BODY_BYTES} bytes", "more", where="HTTP", do=do)
    return decode(body.decode(errors="replace")) if body else {}


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, EnvFailure | InvalidInput) else f"{type(error).__name__}: {error}"
