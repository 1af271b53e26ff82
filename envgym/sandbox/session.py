"""A Python that keeps its state between runs, inside the sandbox, and that can be forked in the middle.

A fork costs a process clone and a copy of the files. Both sides go on independently: each has its own memory, processes
and files, and none can see, signal or write the other's.
"""

import resource
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Self

from envgym.errors import ForkUnsupported, InvalidInput, ToolError
from envgym.sandbox._bwrap_start import kernel_limits
from envgym.sandbox._layout import WORK
from envgym.sandbox._session_watch import MAX_CLONES
from envgym.sandbox._supervisor_client import (
    ANSWER_S,
    Fields,
    RemoteSession,
    SessionEnded,
    SupervisorClient,
    close_cgroups,
    enter_cgroups,
    session_cgroup,
    shared_supervisor,
    socket_name,
)
from envgym.sandbox.records import DEFAULT_LIMITS, Limits, RunEnding

MAX_LIVE_FORKS = 64
"""Sessions, forked from one another, that may live at the same time."""
MAX_FILE = 8 * 1024**2
"""Bytes of a file that can be read out."""
_LOOK_S = 0.05
_GRACE_S = 1.0
FORK_S = 15.0
"""Seconds that a session has to clone itself, and its clones to turn to their own files."""
_ENDED = "The Python process has ended: its variables are lost, its files too. The next run starts a new one."


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResult:
    """What one run of a session gave."""

    output: str
    """Standard output and error in the order they were written, the value of a last expression, the traceback."""
    error: str | None
    """Name of the exception that ended the code; `SessionEnded` where its process is gone."""
    ending: RunEnding
    """`EXITED`, or the limit that stopped the code."""
    seconds: float


@dataclass(slots=True)
class _ClonePool:
    """Clones of one state: those that sessions hold, and those that wait for another fork of the same state."""

    size: int
    users: int = 1
    spares: list[RemoteSession] = field(default_factory=list)


@dataclass(slots=True)
class _ForkGroup:
    num_alive: int = 1
    lock: AbstractContextManager[bool] = field(default_factory=threading.RLock)
    """Held by a fork, and by what ends a state that others were forked from."""


class PythonSession:
    """A persistent Python; used by one thread at a time."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        """Prepare a session; its process starts with the first use. `limits` hold for each run, `disk` for all."""
        self.limits = limits
        self._supervisor: SupervisorClient = shared_supervisor()
        self._remote: RemoteSession | None = None
        self._pool: _ClonePool | None = None
        self._fork_group = _ForkGroup()
        self._is_closed = False

    def run(self, code: str) -> SessionResult:
        """Run code; a last expression's value is shown. A limit interrupts the code; the state is kept if it heeds.

        Raises: ToolInfraFailure: the sandbox does not work. InvalidInput: the session is closed.
        """
        begun = time.monotonic()
        remote = self._own()
        try:
            self._supervisor.begin_run(remote, self.limits)
            remote.send({"op": "run"}, code.encode(errors="replace"))
            ending, (fields, output) = self._wait(remote, begun)
        except SessionEnded as end:
            self._drop()
            ending = self._supervisor.confirm_end(remote)
            ending = end.args[1] if len(end.args) > 1 else ending
            return SessionResult(output=_ENDED, error="SessionEnded", ending=ending, seconds=time.monotonic() - begun)
        text = output.decode(errors="replace")
        error = fields.get("error")
        error = error[:200] if isinstance(error, str) else None
        return SessionResult(output=text, error=error, ending=ending, seconds=time.monotonic() - begun)

    def read_file(self, path: str) -> bytes:
        """Return a file's content; `path` counts from the working directory. Raises: ToolError: it cannot be read."""
        _, content = self._ask({"op": "read", "path": path, "size": MAX_FILE}, b"", MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise ToolError(f"{path} is larger than {MAX_FILE} bytes.")
        return content

    def write_file(self, path: str, content: bytes) -> None:
        """Write a file, with its directories. Raises: ToolError: it cannot be written."""
        self._ask({"op": "write", "path": path}, content, 0)

    def fork(self) -> Self:
        """Return a session that goes on from here, on its own.

        Raises: ForkUnsupported: threads, programs or shared memory of the code stand in the way, or too many live.
            ToolInfraFailure: the sandbox does not work.
        """
        twin = type(self)(self.limits)
        self._supervisor.sweep()
        with self._fork_group.lock:
            if self._fork_group.num_alive >= MAX_LIVE_FORKS:
                do = "close some, or drop the last reference to them"
                got = str(self._fork_group.num_alive + 1)
                raise ForkUnsupported.of("live forks", f"be at most {MAX_LIVE_FORKS}", got, where="session", do=do)
            if self._remote is not None:
                twin._remote = self._spare(self._remote)
                twin._pool = self._pool
            self._fork_group.num_alive += 1
            twin._fork_group = self._fork_group
        return twin

    def close(self) -> None:
        """End the session; may be called twice."""
        self._release()
        self._supervisor.sweep()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Leave the process to the next sweep: this may run in the middle of anything."""
        with suppress(AttributeError, TypeError):  # at the interpreter's end
            self._release()

    # ---- processes -------------------------------------------------------------------------------------------

    def _own(self) -> RemoteSession:
        """Return the process, which is about to leave the state that its clones have."""
        if self._is_closed:
            raise InvalidInput.of("session", "be open", "a closed one", where="session", do="start a new one")
        self._supervisor.sweep()
        with self._fork_group.lock:
            self._leave_pool()
        if self._remote is None:
            self._remote = self._supervisor.spawn(_kernel_limits(self.limits), self.limits)
        return self._remote

    def _spare(self, remote: RemoteSession) -> RemoteSession:
        """Return a process in the state of this session's, which has not run since."""
        if self._pool is None or not self._pool.spares:
            size = 2 if self._pool is None else min(2 * self._pool.size, MAX_CLONES)
            self._remote, *spares = self._clones(remote, size)
            self._pool = self._pool or _ClonePool(size)
            self._pool.size, self._pool.spares = size, spares
        self._pool.users += 1
        return self._pool.spares.pop()

    def _clones(self, remote: RemoteSession, count: int) -> Sequence[RemoteSession]:
        """Clone a process `count` times; it stands still from then on, so its clones do not meet through it."""
        pairs = [socket.socketpair() for _ in range(count)]
        names = [socket_name(there) for _, there in pairs]
        clones: list[RemoteSession] = []
        try:
            self._let_clone(remote, [there.fileno() for _, there in pairs])
            adopted = _request(self._supervisor, "adopt", remote, sockets=names)
            if "refused" in adopted:
                raise _unforkable(adopted["refused"])
            for number, (here, _), name in zip(adopted["ids"], pairs, names, strict=True):
                cgroup, generation = session_cgroup(self.limits), remote.generation
                clones.append(RemoteSession(id=number, channel=here, name=name, generation=generation, cgroup=cgroup))
            enter_cgroups(clones, adopted["pids"])  # before they are seen to be alone
            _refresh(self._supervisor, remote, clones)
        except BaseException:
            for here, _ in pairs:
                here.close()
            close_cgroups(clones)
            raise
        finally:
            for _, there in pairs:
                there.close()
        remote.leave()
        return clones

    def _let_clone(self, remote: RemoteSession, sockets: Sequence[int]) -> None:
        """Let a process clone itself, once for each socket. Raises: ForkUnsupported: it cannot."""
        try:
            remote.send({"op": "fork"}, b"", sockets)
            _answer(remote, 0, FORK_S)
        except ToolError as refusal:
            is_deep = "No space left" in str(refusal)  # for another namespace within namespaces
            raise _unforkable("a chain of too many forks with runs between them" if is_deep else str(refusal)) from None
        except SessionEnded as end:
            self._drop()
            self._supervisor.confirm_end(remote)
            raise _unforkable(str(end.args[0])) from None

    def _leave_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.users -= 1
            if pool.users == 0:
                self._supervisor.garbage += pool.spares

    def _drop(self) -> None:
        if self._remote is not None:
            self._supervisor.garbage.append(self._remote)
        self._remote = None

    def _release(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._fork_group.num_alive -= 1
            self._leave_pool()
            self._drop()

    # ---- questions -------------------------------------------------------------------------------------------

    def _ask(self, fields: Fields, blob: bytes, max_blob: int) -> tuple[Fields, bytes]:
        """Ask for something that takes no time. Raises: ToolError: it is refused. ToolInfraFailure."""
        remote = self._own()
        try:
            remote.send(fields, blob)
            return _answer(remote, max_blob, ANSWER_S)
        except SessionEnded:
            self._drop()
            self._supervisor.confirm_end(remote)
            raise ToolError(_ENDED) from None

    def _wait(self, remote: RemoteSession, begun: float) -> tuple[RunEnding, tuple[Fields, bytes]]:
        """Wait for the end of a run; interrupt it at a limit, end its process where it does not heed."""
        limits, ending = self.limits, RunEnding.EXITED
        deadline, last = begun + limits.wall_s, float("inf")
        before_s = remote.cgroup.cpu_s() if remote.cgroup else 0.0
        while (answer := remote.receive(_LOOK_S, limits.output)) is None:
            now = time.monotonic()
            used = _request(self._supervisor, "usage", remote)
            if used["memory"] > limits.memory:
                raise SessionEnded("it uses too much memory", RunEnding.MEMORY)
            if used["processes"] > limits.processes:
                raise SessionEnded("it has too many processes", RunEnding.PROCESSES)
            if now >= last:
                raise SessionEnded("it does not heed an interrupt", ending)
            cpu_s = remote.cgroup.cpu_s() - before_s if remote.cgroup else used["cpu_s"]
            is_late, is_costly = now >= deadline, cpu_s > limits.cpu_s
            if ending is RunEnding.EXITED and (is_late or is_costly):
                ending, last = RunEnding.WALL_TIME if is_late else RunEnding.CPU_TIME, now + _GRACE_S
                _request(self._supervisor, "interrupt", remote)
        return ending, answer


def _kernel_limits(limits: Limits) -> list[tuple[int, int]]:
    """Return the limits of the kernel: processes of all forks together, and no processor time, which is each run's."""
    return [
        (kind, value + (kind == resource.RLIMIT_NPROC) * 2 * MAX_LIVE_FORKS)
        for kind, value in kernel_limits(limits)
        if kind != resource.RLIMIT_CPU
    ]


def _refresh(supervisor: SupervisorClient, remote: RemoteSession, clones: Sequence[RemoteSession]) -> None:
    """Let clones turn to their own files, and have them checked. Raises: ForkUnsupported; `remote` goes on."""
    ids, deadline = [clone.id for clone in clones], time.monotonic() + FORK_S
    try:
        for clone in clones:
            clone.send({"op": "refresh"})
        for clone in clones:
            _answer(clone, 0, deadline - time.monotonic())
    except (SessionEnded, ToolError) as end:
        _request(supervisor, "undo", remote, ids=ids)
        raise _unforkable(str(end.args[0])) from None
    checked = _request(supervisor, "check", remote, ids=ids, sockets=[clone.name for clone in clones])
    if "refused" in checked:
        raise _unforkable(checked["refused"])


def _request(supervisor: SupervisorClient, op: str, remote: RemoteSession, **fields: object) -> Fields:
    """Ask a session's own supervisor about it. Raises: ToolInfraFailure: that one is gone."""
    return supervisor.request(op, generation=remote.generation, id=remote.id, **fields)


def _answer(remote: RemoteSession, max_blob: int, seconds: float) -> tuple[Fields, bytes]:
    """Return the immediate answer of a process. Raises: ToolError: it refuses. SessionEnded: it does not."""
    answer = remote.receive(max(0.0, seconds), max_blob)
    if answer is None:
        raise SessionEnded("it does not answer")
    if "failed" in answer[0]:
        raise ToolError(str(answer[0]["failed"])[:200])
    return answer


def _unforkable(got: str) -> ForkUnsupported:
    do = "end threads and child processes and release shared memory before a fork"
    return ForkUnsupported.of("session", "be a single process with one thread at a fork", got, where=WORK, do=do)
