"""What stands before vLLM's routes in `envgym policy-server --engine vllm`, and makes its protocol that of the twin.

vLLM imports `Frontend` by the name that `--middleware` gives. Its own key protects some routes only, and not those that
change weights; this asks for the token on all of them. It answers `/envgym/info`, and `/weight_checker` with digests by
the names of a checkpoint, as vLLM's own are of what kernels keep. Where a weight update fails, the requests under way
end, and no other is answered.
"""

import asyncio
import json
import os
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

import torch

from envgym.agents.policies.serving.backend import TOKEN_VARIABLE
from envgym.agents.policies.serving.wire import GENERATE, INFO, PROTOCOL, error_reply
from envgym.agents.policies.weights.collective import transports_of
from envgym.core.json_types import JsonObject
from envgym.runtime.http.access import is_loopback, refusal
from envgym.runtime.http.server import HttpReply
from envgym.runtime.processes.log import HEADER, Ids, about, log_event

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]

URL_VARIABLE: Final = "ENVGYM_POLICY_URL"
"""Environment variable with the address at which this process serves."""
DESCRIPTION_VARIABLE: Final = "ENVGYM_POLICY_MODEL"
"""Environment variable with what `/envgym/info` says of the model, in JSON."""
_UPDATES: Final = frozenset({"/start_weight_update", "/update_weights", "/finish_weight_update"})
"""Routes that leave the weights of unknown state where they fail; nobody in a group leaves them as they were."""


class Frontend:
    """ASGI middleware, made once for the application of one process."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._token, self._url = os.environ.get(TOKEN_VARIABLE), os.environ[URL_VARIABLE]
        self._is_local = is_loopback(self._url.removeprefix("http://").rpartition(":")[0].strip("[]"))
        self._description: JsonObject = json.loads(os.environ[DESCRIPTION_VARIABLE])
        self._instance = uuid.uuid4().hex
        self._broken: str | None = None
        self._sampling: set[asyncio.Task[Any]] = set()
        """Requests that sample."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket, which no client of ours opens, and whose token nobody would ask for
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = refusal(headers, url=self._url, is_local=self._is_local, token=self._token)
        method, path = scope["method"], scope["path"]
        started, status = time.perf_counter(), 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        with about(Ids.of_header(headers.get(HEADER.lower()))):
            if refused is not None:
                reply: HttpReply | None = error_reply(*refused)
            else:
                reply = await self._answer(method, path, scope["app"])
            if reply is None:
                reply = await self._forward(scope, receive, send_noting)
            if reply is not None:
                await _send(reply, send_noting)
            if method == "POST":
                log_event("request", path=path, status=status, seconds=time.perf_counter() - started)

    async def _answer(self, method: str, path: str, app: Any) -> HttpReply | None:  # FastAPI
        """Answer what is answered here; None: vLLM answers it."""
        if self._broken is not None and (method == "POST" or path == "/health"):
            return self._refusal()
        if (method, path) == ("GET", INFO):
            return await self._info(app.state.engine_client)
        if (method, path) == ("POST", "/weight_checker"):
            return await self._check_weights(app.state.engine_client)
        return None

    async def _forward(self, scope: Message, receive: Receive, send: Send) -> HttpReply | None:
        """Let vLLM answer; return what is answered where it did not, as an update failed meanwhile."""
        path, task = scope["path"], asyncio.current_task()
        assert task is not None, "a request is a task"
        has_begun, status = False, 0

        async def send_noting(message: Message) -> None:
            nonlocal has_begun, status
            has_begun, status = True, message.get("status", status)
            await send(message)

        if path == GENERATE:
            self._sampling.add(task)
        try:
            await self._app(scope, receive, send_noting)
        except asyncio.CancelledError:
            if self._broken is None or has_begun:
                raise
            task.uncancel()
            return self._refusal()
        except Exception as error:
            if path in _UPDATES:
                self._break(path, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._sampling.discard(task)
        if path in _UPDATES and status != HTTPStatus.OK:
            self._break(path, f"status {status}")
        return None

    def _break(self, path: str, reason: str) -> None:
        """Answer nothing from now on."""
        self._broken = f"{path} failed: {reason}".rstrip(".: ")
        for task in self._sampling:
            task.cancel()

    def _refusal(self) -> HttpReply:
        detail = f"the server is broken, as {self._broken}; start it again."
        return error_reply(HTTPStatus.SERVICE_UNAVAILABLE, detail)

    async def _info(self, engine: Any) -> HttpReply:  # vLLM's EngineClient
        config, device = engine.model_config, engine.vllm_config.device_config.device_type
        transports = transports_of(torch.device(device))
        if device == "cuda" and engine.vllm_config.parallel_config.world_size > 1:
            transports = tuple(name for name in transports if name != "ipc")  # the memory is that of one GPU
        return HttpReply.of_json(
            {
                "engine": "vllm",
                "protocol": PROTOCOL,
                "weight_version": await engine.get_weight_version(),
                "max_context": config.max_model_len,
                "dtype": str(config.dtype).removeprefix("torch."),
                "instance": self._instance,
                "transports": list(transports),
                **self._description,
            }
        )

    async def _check_weights(self, engine: Any) -> HttpReply:  # as above
        of_workers = await engine.collective_rpc("compute_live_digests")
        return HttpReply.of_json({"checksums": of_workers[0]})


async def _send(reply: HttpReply, send: Send) -> None:
    head = [(b"content-type", reply.content_type.encode()), (b"content-length", str(len(reply.body)).encode())]
    await send({"type": "http.response.start", "status": int(reply.status), "headers": head})
    await send({"type": "http.response.body", "body": reply.body})
