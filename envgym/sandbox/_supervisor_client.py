"""The host's side of the supervisor: one sandbox for all sessions of a process, and the channel to each session."""

import atexit
import json
import os
import resource
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from envgym.errors import ToolInfraFailure
from envgym.sandbox._bwrap_start import options_of_files, pid_of, start_bwrap
from envgym.sandbox._cgroup import Cgroup, shared_cgroups
from envgym.sandbox._launcher_client import Argument
from envgym.sandbox._layout import PYTHON, USER, WORK
from envgym.sandbox._namespaces import FORK_FLAGS
from envgym.sandbox._seccomp import seccomp_filter
from envgym.sandbox._session_helper import MAX_PACKET, size_of_output
from envgym.sandbox._session_watch import MAX_CLONES
from envgym.sandbox._watch import close_all
from envgym.sandbox.records import MIB, Limits, RunEnding

ANSWER_S = 60.0
_MODULES = ("_supervisor", "_interpreter", "_namespaces", "_processes", "_session_helper", "_session_watch", "_tree")
_MAX_FIELDS = 65536
_HEAD = struct.Struct("=II")
_DYING_S = 10.0

Fields = Mapping[str, Any]  # decoded JSON


class SessionEnded(Exception):
    """The process of a session is gone, or sends an invalid reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSession:
    """The process of one session, as the host sees it."""

    id: int
    """In the supervisor's namespace."""
    channel: socket.socket
    name: str
    """Of the socket at its end, as /proc tells it."""
    generation: int
    """Of the supervisor; a later one knows nothing of it."""
    received: bytearray = field(default_factory=bytearray)
    """What has come of the next answer."""
    cgroup: Cgroup | None = None
    """What it is in, besides being counted."""

    def leave(self) -> None:
        """Ask no more of it, which stands still until its clones have ended."""
        self.channel.close()
        if self.cgroup is not None:
            self.cgroup.release()

    def send(self, fields: Fields, blob: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        """Ask for something. Raises: SessionEnded."""
        text = json.dumps(fields).encode()
        try:
            self.channel.settimeout(ANSWER_S)
            socket.send_fds(self.channel, [_HEAD.pack(len(text), len(blob))], descriptors)
            self.channel.sendall(text + blob)
        except OSError:
            raise SessionEnded("it does not listen") from None

    def receive(self, seconds: float, max_blob: int) -> tuple[Fields, bytes] | None:
        """Return an answer, None where it is not complete in time. Raises: SessionEnded."""
        deadline = time.monotonic() + seconds
        while (answer := self._complete_answer(max_blob)) is None:
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self.channel], [], [], left)[0]:
                return None
            try:
                chunk = self.channel.recv(MIB)
            except OSError:
                chunk = b""
            if not chunk:
                raise SessionEnded("it has closed its end")
            self.received.extend(chunk)
        return answer

    def _complete_answer(self, max_blob: int) -> tuple[Fields, bytes] | None:
        """Take an answer from what has come, None where some of it is missing. Raises: SessionEnded."""
        if len(self.received) < _HEAD.size:
            return None
        num_fields, num_blob = _HEAD.unpack_from(self.received)
        if num_fields > _MAX_FIELDS or num_blob > max_blob:
            raise SessionEnded("it answers too much")
        size = _HEAD.size + num_fields + num_blob
        if len(self.received) < size:
            return None
        text, blob = self.received[_HEAD.size : size - num_blob], bytes(self.received[size - num_blob : size])
        del self.received[:size]
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            raise SessionEnded("it answers what is no JSON") from None
        if not isinstance(fields, dict):
            raise SessionEnded("it answers what is no answer")
        return fields, blob


class SupervisorClient:
    """Talks to the supervisor; used by all threads."""

    def __init__(self) -> None:
        """Prepare; the sandbox is started when it is needed."""
        self.lock = threading.RLock()
        self.garbage: list[RemoteSession] = []
        """Processes that nobody uses any more; ended with the next request (append is safe at any moment)."""
        self.generation = 0
        """Counts the sandboxes that were started."""
        self._control: socket.socket | None = None
        self._descriptors: tuple[int, ...] = ()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def request(
        self, op: str, descriptors: Sequence[int] = (), /, *, generation: int | None = None, **fields: object
    ) -> Fields:
        """Ask the supervisor; other threads may ask meanwhile.

        Args:
            op: Name of the request.
            descriptors: Sent along.
            generation: The supervisor that the session in question belongs to; None: any.
            fields: Of the request.

        Returns: the answer; where it has new {"ids"}, also their {"pids"} here, none where one of them has ended.
        Raises: ToolInfraFailure: there is none, it is another one, or the system refuses it something.
        """
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here:
            with there, self.lock:
                if generation is not None and (self._control is None or generation != self.generation):
                    raise _dead("another one in its place")
                control = self._started()
                own_generation = self.generation
                message = json.dumps({"op": op, **fields}).encode()
                try:
                    socket.send_fds(control, [message], [there.fileno(), *descriptors])
                except OSError as error:
                    self._stop()
                    raise _dead(str(error)) from None
            here.settimeout(ANSWER_S)
            processes: list[int] = []
            try:
                text, processes, _, _ = socket.recv_fds(here, MAX_PACKET, MAX_CLONES)
                got = "it has ended"
            except OSError as error:
                text, got = b"", str(error)
        pids = [pid_of(process) for process in processes]
        close_all(*processes)
        if not text:
            with self.lock:
                if self.generation == own_generation:
                    self._stop()
            raise _dead(got)
        answer: dict[str, Any] = json.loads(text)  # decoded JSON
        if "failed" in answer:  # this request; others are served
            raise _dead(str(answer["failed"]))
        return answer | {"pids": pids} if "ids" in answer else answer

    def sweep(self) -> None:
        with self.lock:
            garbage, self.garbage = self.garbage, []
            generation = self.generation if self._control is not None else -1
        for remote in garbage:
            remote.channel.close()
        ids = [remote.id for remote in garbage if remote.generation == generation]
        if ids:
            with suppress(ToolInfraFailure):
                self.request("kill", generation=generation, ids=ids)
        close_cgroups(garbage)

    def begin_run(self, remote: RemoteSession, limits: Limits) -> None:
        """Tell the supervisor that a run begins, without waiting; its limits hold until the next one begins."""
        fields = {"memory": limits.memory, "processes": limits.processes, "cpu_s": limits.cpu_s}
        message = json.dumps({"op": "begin", "id": remote.id, **fields}).encode()
        with self.lock, suppress(OSError):  # the next request tells of its end
            if self._control is not None and remote.generation == self.generation:
                self._control.send(message)

    def confirm_end(self, remote: RemoteSession) -> RunEnding:
        """See that a session's end is its own; return the limit that ended it, `EXITED` where none did.

        Raises: ToolInfraFailure: its supervisor is gone too.
        """
        ending = RunEnding(self.request("ending", generation=remote.generation, id=remote.id)["ending"])
        is_out_of_memory = remote.cgroup is not None and remote.cgroup.was_out_of_memory()
        return RunEnding.MEMORY if ending is RunEnding.EXITED and is_out_of_memory else ending

    def spawn(self, kernel_limits: Sequence[tuple[int, int]], limits: Limits) -> RemoteSession:
        """Start a session's process, under a new supervisor where the old one has died. Raises: ToolInfraFailure."""
        here, there = socket.socketpair()
        name = socket_name(there)
        try:
            with self.lock:
                if self._control is not None and select.select([self._control], [], [], 0)[0]:
                    self._stop()  # it speaks here only when it starts, so this is its end
                self._started()
                generation = self.generation
            fields = {"limits": kernel_limits, **asdict(limits)}
            answer = self.request("spawn", [there.fileno()], generation=generation, **fields)
            cgroup = session_cgroup(limits)
            remote = RemoteSession(id=answer["ids"][0], channel=here, name=name, generation=generation, cgroup=cgroup)
            enter_cgroups([remote], answer["pids"])
        except ToolInfraFailure:
            here.close()
            raise
        finally:
            there.close()
        return remote

    def _started(self) -> socket.socket:
        if self._control is not None:
            return self._control
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.settimeout(ANSWER_S)
        files = {f"envgym/sandbox/{name}.py": Path(__file__).with_name(f"{name}.py").read_bytes() for name in _MODULES}
        files |= {"envgym/__init__.py": b"", "envgym/sandbox/__init__.py": b""}
        descriptors: list[int] = []
        options: list[Argument] = ["--cap-add", "CAP_SYS_ADMIN", "--tmpfs", "/dev/pts", "--remount-ro", "/dev/pts"]
        options += ["--setenv", "PYTHONHASHSEED", "0", "--size", str(MIB), "--tmpfs", WORK]
        options += options_of_files(files, descriptors)
        rules = seccomp_filter(sockets=False, fork_flags=FORK_FLAGS).hex()
        argv = [PYTHON, "-s", "-S", "-m", "envgym.sandbox._supervisor", rules, USER]
        limits = [(resource.RLIMIT_CORE, 0)]
        try:
            started, process = start_bwrap(argv, there.detach(), options, descriptors, limits, sockets=None)
        except ToolInfraFailure:
            here.close()
            raise
        self._descriptors = (started.stdout, started.stderr, started.report, process)
        self._control = here
        self.generation += 1
        try:
            ready = here.recv(MAX_PACKET)
        except OSError as error:
            ready = b""
            raise _dead(str(error)) from None
        finally:
            if not ready:
                message = os.read(started.stderr, 4096).decode(errors="replace")[-500:]
                self._stop()
        if not ready:
            raise _dead(message.strip() or "its end")
        return here

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._descriptors:
            with suppress(OSError):
                signal.pidfd_send_signal(self._descriptors[-1], signal.SIGKILL)
            select.select([self._descriptors[-1]], [], [], _DYING_S)
        close_all(*self._descriptors)
        self._control, self._descriptors = None, ()

    def close(self) -> None:
        """End the sandbox and every session in it; later use starts another."""
        with self.lock:
            self.sweep()
            self._stop()

    def _forget(self) -> None:
        """Start afresh in a forked child: the sandbox is the parent's."""
        self.lock = threading.RLock()
        self.garbage = []
        if self._control is not None:
            self._control.close()
        close_all(*self._descriptors)
        self._control, self._descriptors = None, ()


def session_cgroup(limits: Limits) -> Cgroup | None:
    """Make a cgroup for one session, None where there are none. Raises: ToolInfraFailure: no more can be made."""
    memory = limits.memory + limits.disk + size_of_output(limits.output)
    return shared_cgroups().make(memory, 2 * (limits.processes + MAX_CLONES))  # who counts sees that they are too many


def enter_cgroups(remotes: Sequence[RemoteSession], pids: Sequence[int]) -> None:
    """Move sessions into their cgroups; no `pids`: one has ended, as its use will show. Raises: ToolInfraFailure."""
    for remote, pid in zip(remotes, pids, strict=False):
        if remote.cgroup is not None:
            remote.cgroup.add(pid)


def close_cgroups(remotes: Sequence[RemoteSession]) -> None:
    """End what is in the cgroups of sessions, and remove them."""
    for remote in remotes:
        if remote.cgroup is not None:
            remote.cgroup.close()


def socket_name(end: socket.socket) -> str:
    return f"socket:[{os.fstat(end.fileno()).st_ino}]"


def _dead(got: str) -> ToolInfraFailure:
    do = "start a new session"
    return ToolInfraFailure.of("sandbox of the sessions", "be able to serve", got, where="session", do=do)


@cache
def shared_supervisor() -> SupervisorClient:
    return SupervisorClient()
