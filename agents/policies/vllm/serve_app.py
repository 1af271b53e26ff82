"""What stands before vLLM's routes in `envgym policy-server --engine vllm`, and makes its protocol that of the twin.

vLLM imports `Frontend` by the name that `--middleware` gives. Its own key protects some routes only, and not those that
change weights; this asks for the token on all of them. It answers `/envgym/info`, and `/weight_checker` with digests by
the names of a checkpoint, as vLLM's own are of what kernels keep. `/envgym/generate` asks vLLM's own route, and puts
request and answer into arrays. Where a weight update fails, the requests under way end, and no other is answered.
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

from envgym.agents.policies.serving import frames
from envgym.agents.policies.serving.backend import TOKEN_VARIABLE
from envgym.agents.policies.serving.frames import FRAMES
from envgym.agents.policies.serving.held import HeldContexts, UnknownContext
from envgym.agents.policies.serving.wire import (
    GENERATE,
    INFO,
    PROTOCOL,
    error_reply,
    generate_body,
    logprobs_body,
    read_generation,
    read_row_logprobs,
)
from envgym.agents.policies.weights.channel import transports_of
from envgym.agents.protocols import GenerateRequest
from envgym.chats.replies import BadResponse
from envgym.core.json_types import JsonObject
from envgym.errors import InvalidInput, PolicyFailure
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
_MAX_BODY_BYTES: Final = 32 << 20
"""Of a request in arrays, as of the twin."""
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
        self._contexts = HeldContexts()

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
            if reply is None and (method, path) == ("POST", FRAMES):
                reply = await self._generate_frame(scope, receive)
            if reply is None and (method, path) == ("POST", frames.ROW_FRAMES):
                reply = await self._score_frame(scope, receive)
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

    async def _generate_frame(self, scope: Message, receive: Receive) -> HttpReply:
        """Let vLLM answer a request in arrays, in its own form."""
        try:
            framed = frames.read_request(await _read_body(receive))
            context = self._contexts.context(framed)
        except UnknownContext as error:
            return error_reply(HTTPStatus.GONE, str(error))
        except InvalidInput as error:
            return error_reply(HTTPStatus.BAD_REQUEST, str(error))
        request = GenerateRequest(token_ids=frames.read_tokens(context), sampling=framed.sampling, seed=framed.seed)
        limit, model = framed.sampling.max_new_tokens, framed.model or str(self._description.get("model"))
        message = generate_body(request, limit=limit, model=model, salt=framed.salt)
        reply = await self._forward_json(scope, receive, GENERATE, message)
        if reply.status != HTTPStatus.OK:
            return reply
        try:
            generation = read_generation(json.loads(reply.body), request)
        except (BadResponse, PolicyFailure, ValueError) as error:
            return error_reply(HTTPStatus.INTERNAL_SERVER_ERROR, f"vLLM's answer cannot be used: {error}")
        self._contexts.keep(framed.key, context, generation.token_ids)
        return HttpReply(HTTPStatus.OK, frames.write_answer(generation), frames.FRAME_TYPE)

    async def _score_frame(self, scope: Message, receive: Receive) -> HttpReply:
        """Let vLLM compute the log-probs of a row, in its own form."""
        try:
            model, salt, row = frames.read_row(await _read_body(receive))
        except InvalidInput as error:
            return error_reply(HTTPStatus.BAD_REQUEST, str(error))
        message = logprobs_body(row, model=model or str(self._description.get("model")), salt=salt)
        reply = await self._forward_json(scope, receive, GENERATE, message)
        if reply.status != HTTPStatus.OK:
            return reply
        try:
            logprobs = read_row_logprobs(json.loads(reply.body), row)
        except (BadResponse, PolicyFailure, ValueError) as error:
            return error_reply(HTTPStatus.INTERNAL_SERVER_ERROR, f"vLLM's answer cannot be used: {error}")
        return HttpReply(HTTPStatus.OK, frames.write_row_answer(logprobs), frames.FRAME_TYPE)

    async def _forward_json(self, scope: Message, receive: Receive, path: str, body: JsonObject) -> HttpReply:
        """Let vLLM answer another request in the place of one, and return its reply."""
        content, is_read = json.dumps(body, separators=(",", ":")).encode(), False
        headers = [pair for pair in scope["headers"] if pair[0] not in (b"content-type", b"content-length")]
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        status, parts = HTTPStatus.INTERNAL_SERVER_ERROR, list[bytes]()

        async def receive_json() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()  # that the client has left
            is_read = True
            return {"type": "http.request", "body": content, "more_body": False}

        async def take(message: Message) -> None:
            nonlocal status
            status = HTTPStatus(message.get("status", status))
            parts.append(message.get("body", b""))

        inner = {**scope, "path": path, "raw_path": path.encode(), "headers": [*headers, *head]}
        refused = await self._forward(inner, receive_json, take)
        return refused or HttpReply(status, b"".join(parts))

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
                "has_frames": True,
                **self._description,
            }
        )

    async def _check_weights(self, engine: Any) -> HttpReply:  # as above
        of_workers = await engine.collective_rpc("compute_live_digests")
        return HttpReply.of_json({"checksums": of_workers[0]})


async def _read_body(receive: Receive) -> bytes:
    """Read the body of a request. Raises: InvalidInput: it is too long, or its client has left."""
    body, is_whole = bytearray(), False
    while not is_whole:
        message = await receive()
        must, do = f"have at most {_MAX_BODY_BYTES} bytes and be whole", "send less at once"
        body += message.get("body", b"")
        holds = message["type"] == "http.request" and len(body) <= _MAX_BODY_BYTES
        InvalidInput.unless(holds, "body", must, len(body), where=frames.FRAMES, do=do)
        is_whole = not message.get("more_body", False)
    return bytes(body)


async def _send(reply: HttpReply, send: Send) -> None:
    head = [(b"content-type", reply.content_type.encode()), (b"content-length", str(len(reply.body)).encode())]
    await send({"type": "http.response.start", "status": int(reply.status), "headers": head})
    await send({"type": "http.response.body", "body": reply.body})
