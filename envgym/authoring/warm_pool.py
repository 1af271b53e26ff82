"""Programs that environments keep running: each is lent to one episode at a time, which brings it to its own state."""

import atexit
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class WarmProgram(Protocol):
    """A running program; used by one thread at a time."""

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, as far as is known."""
        ...

    def close(self) -> None:
        """End it; may be called twice."""
        ...


ProgramT = TypeVar("ProgramT", bound=WarmProgram)
StateT = TypeVar("StateT")


class WarmPool(ABC, Generic[ProgramT, StateT]):
    """Up to `size` programs of a process, each started when it is needed; used by all threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: list[ProgramT] = []
        self._num_out = 0
        self._changed = threading.Condition()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    @abstractmethod
    def start(self) -> ProgramT:
        """Start a program. Raises: ToolInfraFailure: it does not start."""

    @abstractmethod
    def choose(self, idle: Sequence[ProgramT], state: StateT, *, has_room: bool) -> ProgramT | None:
        """Return the program to lend for a state; None: start another.

        Args:
            idle: those that nobody uses.
            state: to which it will be brought.
            has_room: whether another may be started; there is an idle one where it may not.
        """

    def take(self, state: StateT) -> ProgramT:
        """Wait for a program, and lend it until `give_back`. Raises: as `start`."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_out < self._size)
            self._num_out += 1
            has_room = len(self._idle) + self._num_out <= self._size
            program = self.choose(self._idle, state, has_room=has_room)
            if program is not None:
                self._idle.remove(program)
                return program
        try:
            return self.start()
        except BaseException:
            with self._changed:
                self._num_out -= 1
                self._changed.notify()
            raise

    def give_back(self, program: ProgramT) -> None:
        """Let others use a program, or start another in place of one that is lost."""
        with self._changed:
            self._num_out -= 1
            if not program.is_lost:
                self._idle.append(program)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            idle, self._idle = self._idle, []
        for program in idle:
            program.close()

    def _forget(self) -> None:
        """Begin without programs in a forked child: they are the parent's."""
        self._idle, self._num_out, self._changed = [], 0, threading.Condition()
