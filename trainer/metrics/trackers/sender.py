"""A thread that sends rows to a slow tracker, so that training does not wait for it."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from envgym.runtime.event_loop import DaemonThread
from envgym.trainer.metrics.update import Metrics


class Sender:
    """Calls a function with every row, in order, in a thread. After the first failure it calls it no more."""

    def __init__(self, send: Callable[[int, Metrics], None], *, name: str) -> None:
        """Start the thread; `name` is the tracker's."""
        self._send = send
        self._thread = DaemonThread(f"tracker-{name}")
        self._error: Exception | None = None
        self._last: Future[None] | None = None

    def put(self, step: int, metrics: Metrics) -> None:
        """Send a row soon. Raises: whatever an earlier row raised."""
        if self._error is not None:
            raise self._error
        self._last = self._thread.begin(partial(self._send_next, step, metrics))

    def close(self) -> None:
        """Wait until every row is sent. Raises: whatever a row raised."""
        self._thread.end()
        if self._last is not None:
            self._last.result()
        if self._error is not None:
            raise self._error

    def _send_next(self, step: int, metrics: Metrics) -> None:
        if self._error is not None:
            return
        try:
            self._send(step, metrics)
        except Exception as error:  # noqa: BLE001  # of the package; the training thread raises it
            self._error = error
