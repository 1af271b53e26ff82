"""The server of the app: its routes behind the checks of `envgym.viewer.access`."""

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from envgym.runtime.event_loop import LoopThread
from envgym.runtime.http.access import refusal
from envgym.runtime.http.server import HttpLimits, HttpReply, HttpRequest, HttpServer, ThreadedHandler
from envgym.viewer.access import Refusal, foreign_refusal, page_refusal, token_refusal, with_authorization
from envgym.viewer.app import ViewerApp
from envgym.viewer.index import RequestCount
from envgym.viewer.replies import error_reply
from envgym.viewer.viewed_run import ViewedRun

LIMITS: Final = HttpLimits(connections=200, evicts_waiting=True, body_bytes=1 << 20, idle_s=20.0, request_s=20.0)
_THREADS: Final = 40
_THREAD_WAIT_S: Final = 60.0


class ViewerServer(HttpServer):
    """The app on an address; details of episodes are read in the background while it listens."""

    def __init__(self, runs: Sequence[ViewedRun], *, token: str | None = None, problems: Sequence[str] = ()) -> None:
        """Show some runs.

        Args:
            runs: what is shown, by their place in this sequence.
            token: that requests must carry; None: no request needs one.
            problems: why others that were asked for are not among them, a sentence each.
        """
        self.runs, self._page_token, requests = runs, secrets.token_urlsafe(24), RequestCount()
        for run in runs:
            run.index.requests = requests
            run.refresh()
        self._app = ViewerApp(runs, problems=problems, token=token, page_token=self._page_token)

        def answer(request: HttpRequest) -> HttpReply:
            with requests:
                return self._app.answer(request)

        handler = ThreadedHandler(answer, threads=_THREADS, wait_s=_THREAD_WAIT_S, error_form=error_reply)
        super().__init__(handler, token=token, limits=LIMITS, error_form=error_reply)

    def refusal(self, method: str, target: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is not answered; None: it is."""
        path, authorized = target.partition("?")[0], with_authorization(target, headers)
        refused = refusal(authorized, url=self.url, is_local=self.is_local, token=self.token)
        if refused is not None and refused[0] is HTTPStatus.UNAUTHORIZED:
            refused = token_refusal(authorized)
        refused = refused or foreign_refusal(path, headers)
        if method == "GET" or (self.token and "authorization" in headers):
            return refused
        return refused or page_refusal(path, headers, self._page_token)

    async def listen(self, host: str, port: int) -> str:
        """Begin to answer, and to read. Raises: as `HttpServer.listen`."""
        url = await super().listen(host, port)
        for run in self.runs:
            threading.Thread(target=run.read_ahead, name=f"read {run.run.name}", daemon=True).start()
        return url

    async def close(self) -> None:
        """Listen no more, end the episodes that are played, and read no further."""
        for run in self.runs:
            run.close()
        self._app.plays.close()
        await super().close()


@contextmanager
def running(server: ViewerServer, host: str = "127.0.0.1", port: int = 0) -> Iterator[None]:
    """Serve in a thread until the block ends; for tests, and for scripts that take pictures."""
    thread = LoopThread("viewer")
    try:
        thread.run(server.listen(host, port))
        yield
    finally:
        thread.close(server.close())
