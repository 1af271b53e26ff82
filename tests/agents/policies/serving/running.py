"""Policy servers in this process, on loopback, for tests."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.serving.server import PolicyServer
from envgym.agents.policies.serving.wire import error_reply
from envgym.runtime.http.server import HttpLimits, HttpReply, HttpRequest, HttpServer
from tests.support.http_server import http_thread

T = TypeVar("T")


class ServerThread:
    """An event loop in a thread of its own, where servers run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:  # of any coroutine
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=60)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Served(PolicyServer):
    """A policy server in a thread."""

    thread: ServerThread

    def drop_connections(self) -> None:
        """End all connections at once, as a process that dies does."""
        for connection in list(self.http.connections):
            self.thread.loop.call_soon_threadsafe(connection.drop)

    def vanish(self) -> None:
        """Stop listening, and end all connections: what a process that dies leaves. On the thread's loop."""
        assert self.http._listener is not None, "it was started"
        self.http._listener.close()
        for connection in list(self.http.connections):
            connection.drop()


@contextmanager
def serving(
    model: PreTrainedModel,
    *,
    version: int = 0,
    token: str | None = None,
    tokenizer_digest: str | None = None,
    limits: HttpLimits | None = None,
) -> Iterator[Served]:
    """Serve a model until the block ends."""
    policy = TransformersPolicy(model, deterministic=False, version=version)
    served = Served(policy, model, model="small", tokenizer_digest=tokenizer_digest, token=token, limits=limits)
    served.thread = ServerThread()
    served.thread.run(served.http.listen("127.0.0.1", 0))
    try:
        yield served
    finally:
        served.thread.run(served.close())
        served.thread.stop()


Routes = Mapping[str, Callable[[Any], object]]
"""Path -> what is answered to a body: JSON, or (status, JSON)."""


@contextmanager
def scripted(routes: Routes) -> Iterator[HttpServer]:
    """Serve answers that a test makes up."""
    import json

    async def answer(request: HttpRequest) -> HttpReply:
        make = routes.get(request.path)
        if make is None:
            return error_reply(404, f"no {request.path}")
        value: Any = make(json.loads(request.body) if request.body else {})
        if isinstance(value, HttpReply):
            return value
        status, value = value if isinstance(value, tuple) else (200, value)
        return HttpReply.of_json(value, status)

    with http_thread(HttpServer(answer)) as server:
        yield server


@torch.no_grad()
def changed(model: PreTrainedModel, factor: float) -> list[tuple[str, torch.Tensor]]:
    """Return the weights of a model, all of them scaled."""
    return [(name, parameter.detach() * factor) for name, parameter in model.named_parameters()]
