"""A lock for a model that is sampled from again and again and changed now and then."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class WriterPriorityLock:
    """An exclusive lock in which a writer comes before all readers that wait."""

    def __init__(self) -> None:
        """Begin unlocked."""
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._num_writers = 0

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

    def _count(self, difference: int) -> None:
        with self._changed:
            self._num_writers += difference
            self._changed.notify_all()
