"""Requests that a weight update finds under way, and that fails."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.agents.protocols import Generation
from envgym.errors import PolicyFailure
from envgym.runtime.http.server import HttpReply, HttpRequest, HttpServer
from tests.agents.policies.serving.running import Served, changed, serving
from tests.agents.policies.serving.test_client import INFO, QUICK, ask, client
from tests.agents.policies.small_models import llama, request
from tests.support.http_server import http_thread


@contextmanager
def sampling_held(served: Served) -> Iterator[threading.Event]:
    """Yield what is set when a request has sampled a token, and does not go on before an update is under way."""
    began, is_over, decode = threading.Event(), threading.Event(), served._policy._model.decode

    def counted(*arguments: Any) -> torch.Tensor:
        began.set()
        while not (is_over.is_set() or served.weights.hold is not None or served._policy._lock.is_held):
            pass
        return decode(*arguments)

    served._policy._model.decode = counted  # type: ignore[method-assign, assignment]  # of this instance
    yield began
    is_over.set()  # else a request that nobody waits for would keep a thread, and the process, for ever


def test_requests_that_a_failed_update_holds_end_at_once(tmp_path: Path) -> None:
    limits = replace(QUICK, timeout_s=1000, wait_s=0.2)
    failures = list[Exception]()
    with (
        serving(llama(vocab_size=50)) as served,
        client(tmp_path, served.http.url, limits=limits) as policy,
        sampling_held(served) as began,
    ):

        def update() -> None:
            began.wait()
            try:
                policy.update_weights(changed(llama(), 1.5), 9)
            except PolicyFailure as error:
                failures.append(error)

        updating = threading.Thread(target=update)
        updating.start()
        with pytest.raises(PolicyFailure, match=r"is broken \(ServerRefused: 400 lm_head.weight must have shape"):
            ask(policy, [request((5, 6, 7), max_new_tokens=10)])
        updating.join()
    assert [str(error).split(":")[0] for error in failures] == ["no policy server has the weights of version 9"]


def test_requests_of_a_server_that_never_ends_its_update_end_with_it(tmp_path: Path) -> None:
    limits = replace(QUICK, timeout_s=1000, update_timeout_s=0.2, wait_s=0.2)
    began = threading.Event()

    async def answer(asked: HttpRequest) -> HttpReply:
        if asked.path == "/inference/v1/generate":
            began.set()
        if asked.path in {"/inference/v1/generate", "/update_weights"}:
            await asyncio.get_running_loop().create_future()
        return HttpReply.of_json(INFO)

    found = list[Generation | Exception]()
    with (
        http_thread(HttpServer(answer)) as server,
        client(tmp_path, server.url, limits=limits) as policy,
    ):

        def sample() -> None:
            try:
                found.extend(ask(policy, [request((5, 6, 7))]))
            except PolicyFailure as error:
                found.append(error)

        sampling = threading.Thread(target=sample)
        sampling.start()
        began.wait()
        started = time.monotonic()
        with pytest.raises(PolicyFailure, match="is broken \\(TimeoutError\\)"):
            policy.update_weights(changed(llama(), 1.5), 9)
        sampling.join()
        assert time.monotonic() - started >= 0.2
    assert [type(item) for item in found] == [PolicyFailure]
    assert "is broken (TimeoutError)" in str(found[0])
