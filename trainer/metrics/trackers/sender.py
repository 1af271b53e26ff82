"""A thread that sends rows to a slow tracker, so that training does not wait for it."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from envgym.trainer.metrics.update import Metrics


class Sender:
    """Calls a function with every row, in order, in a thread. After the first failure it calls it no more."""

    def __init__(self, send: Callable[[int, Metrics], None], *, name: str) -> None:
        """Start the thread; `name` is the tracker's."""
        self._send = send
        self._rows = SimpleQueue[tuple[int, Metrics] | None]()
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def put(self, step: int, metrics: Metrics) -> None:
        """Send a row soon. Raises: whatever an earlier row raised."""
        if self._error is not None:
            raise self._error
        self._rows.put((step, metrics))

    def close(self) -> None:
        """Wait until every row is sent. Raises: whatever a row raised."""
        self._rows.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (row := self._rows.get()) is not None:
            try:
                self._send(*row)
            except Exception as error:  # noqa: BLE001  # of the package; the training thread raises it
                self._error = error
                return
