"""Who may have the model: those who use it, or one who changes it, who goes first."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turnstile:
    """A lock that whoever changes something gets before those who use it again and again."""

    def __init__(self) -> None:
        """Nobody has it."""
        self._lock = threading.Lock()
        self._door = threading.Condition()
        self._num_waiting = 0

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits to make a change, or makes one."""
        return self._num_waiting > 0

    @contextmanager
    def using(self) -> Iterator[None]:
        """Hold it, once nobody waits to make a change."""
        with self._door:
            self._door.wait_for(lambda: not self._num_waiting)
        with self._lock:
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold it, before all who only use it."""
        self._count(1)
        try:
            with self._lock:
                yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._door:
            self._num_waiting += more
            self._door.notify_all()
