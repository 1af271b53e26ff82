"""What the transformers policy's worker and the event loops of its callers share: requests that wait, and one lock."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from envgym.agents.policies.engine.requests import canonical
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.errors import PolicyFailure


@dataclass(frozen=True, slots=True, eq=False)
class PendingRequest:
    """A request that waits for its generation."""

    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Generation]"


Answer = tuple[PendingRequest, Generation | PolicyFailure]


class RequestQueue:
    """Requests that wait for the worker, and those that it has and has not answered."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Around what callers and worker decide together."""
        self.served: set[PendingRequest] = set()
        """Those that the worker has and has not answered."""
        self._waiting: deque[tuple[PendingRequest, GenerateRequest]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, ticket: PendingRequest, request: GenerateRequest) -> None:
        """Add one that waits; within `lock`."""
        self._waiting.append((ticket, request))

    def take(self) -> list[tuple[PendingRequest, GenerateRequest]]:
        """Take all that wait, in an order that does not depend on who came first."""
        with self.lock:
            arrived = sorted(self._waiting, key=lambda item: canonical(item[1]))
            self._waiting.clear()
        self.served.update(ticket for ticket, _ in arrived)
        return arrived

    def hand_out(self, answers: Sequence[Answer]) -> None:
        """Let the loops know; one call each, so that all answers of a round arrive together."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
        for ticket, answer in answers:
            by_loop.setdefault(ticket.loop, []).append((ticket, answer))
        self.served.difference_update([ticket for ticket, _ in answers])
        for loop, items in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_deliver, items)


def _deliver(answers: Sequence[Answer]) -> None:
    """On the loop: wake those who wait."""
    for ticket, answer in answers:
        if ticket.answer.done():
            continue
        if isinstance(answer, Generation):
            ticket.answer.set_result(answer)
        else:
            ticket.answer.set_exception(answer)


class WriterPriorityLock:
    """An exclusive lock in which a writer comes before all readers that wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._num_writers = self._num_holds = 0

    @property
    def is_held(self) -> bool:
        """Whether a writer asks the reader to let go between two tokens, or holds the lock so."""
        return self._num_holds > 0

    @property
    def has_writer(self) -> bool:
        """Whether a writer waits or holds the lock."""
        return self._num_writers > 0

    @contextmanager
    def read(self) -> Iterator[None]:
        """Hold the lock, once no writer waits for it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_writers)
        with self._lock:
            yield

    @contextmanager
    def write(self) -> Iterator[None]:
        """Hold the lock, before all readers that wait."""
        self._count(1)
        try:
            with self._lock:
                yield
        finally:
            self._count(-1)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock as a writer; a reader is asked, by `is_held`, to let go before it has finished."""
        with self._changed:
            self._num_holds += 1
        try:
            with self.write():
                yield
        finally:
            with self._changed:
                self._num_holds -= 1

    def _count(self, difference: int) -> None:
        with self._changed:
            self._num_writers += difference
            self._changed.notify_all()
