"""Handlers of the HTTP server that block: answered in a bounded number of threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from envgym.errors import sentence
from envgym.runtime.http.server import HttpReply, HttpRequest, detail_reply


class ThreadedHandler:
    """Answers requests by a function that blocks, in a bounded number of threads."""

    def __init__(
        self,
        answer: Callable[[HttpRequest], HttpReply],
        *,
        threads: int,
        wait_s: float,
        error_form: Callable[[HTTPStatus, str], HttpReply] = detail_reply,
    ) -> None:
        """Answer so many requests at a time; a request that gets no thread within `wait_s` is refused."""
        self._answer, self._wait_s, self._error_form = answer, wait_s, error_form
        self._free = asyncio.Semaphore(threads)
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="http")

    async def __call__(self, request: HttpRequest) -> HttpReply:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            detail = sentence("server", "have time", "too many requests", where=request.path, do="try again later")
            return self._error_form(HTTPStatus.SERVICE_UNAVAILABLE, detail)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, request)
        finally:
            self._free.release()
