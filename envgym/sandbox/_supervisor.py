"""The first process in a sandbox for sessions: makes, copies, checks and ends them. It never runs an agent's code.

Every session is a process in namespaces of its own, below the supervisor's. A fork of a session is a clone that the
session's process makes of itself; the process that was cloned is stopped for good, and the clone may go on only after
the supervisor has checked that it holds nothing that another session holds: no memory, no descriptor, no directory.

What takes time, or waits for a process of a session, is done by a helper process, one for each request at a time: a
session that disturbs its own copying or checking delays no other one, and any error there is the refusal of that one
request. A helper that has checked serves the next request; one that has copied ends, and another is made in advance.

Standard library only. Requests are JSON packets on standard input, from the host, each with the socket that gets its
answer; see the methods `do_...` of `SessionSupervisor`.
"""

import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from envgym.sandbox._interpreter import Interpreter, warm_up
from envgym.sandbox._namespaces import (
    NO_DEV,
    NO_SUID,
    PRIVATE,
    READ_ONLY,
    RECURSIVE,
    clean_descriptors,
    clone_into_namespaces,
    drop_capabilities,
    filter_calls,
    map_user,
    mount,
)
from envgym.sandbox._processes import (
    WORK,
    children_of,
    end,
    is_apart,
    state_of,
)
from envgym.sandbox._session_helper import CHECK, COPY, MAX_PACKET, HelperProcess, mount_places, start_helper
from envgym.sandbox._session_watch import SessionWatch

Fields = dict[str, Any]  # decoded JSON
MAX_DESCRIPTORS = 8
_LOOK_S = 0.25
_MAX_IDLE = 8
"""Helper processes that wait for work."""
_HIDDEN = ("/proc", "/dev/pts", "/sys")


class HelperTask(NamedTuple):
    """What a helper process does for a request."""

    work: str
    """Name of one of the helper's functions."""
    arguments: tuple[Any, ...]  # become JSON
    """Its arguments."""
    finish: Callable[[list[int]], Fields]
    """Makes the answer after the work is done, of the clones."""
    undo: Callable[[], None]
    """Runs after the work has failed."""


class SessionSupervisor:
    """Knows the processes of all sessions: those that run, and those that stand still because they were cloned."""

    def __init__(self, seccomp: bytes, user: str) -> None:
        self._seccomp = seccomp
        self._user = user
        self._parents: dict[int, int] = {}  # process -> the one that it was cloned from, 0 for none
        self._sizes: dict[int, tuple[int, int]] = {}  # process -> bytes of its files and of its output
        self._watches: dict[int, SessionWatch] = {}
        self._next_look_s = 0.0
        self._idle: list[HelperProcess] = []
        self._ended: list[int] = []  # helper processes to wait for
        self._selector = selectors.DefaultSelector()

    def serve(self, control: socket.socket) -> None:
        """Answer requests until the host closes its end."""
        self._selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(_LOOK_S if self._watches else None):
                if key.data is not None:
                    key.data()
                    continue
                message, descriptors, _, _ = socket.recv_fds(control, MAX_PACKET, MAX_DESCRIPTORS)
                if not message:
                    return
                fields = json.loads(message)
                if fields["op"] == "begin":
                    self._begin_run(fields)
                else:
                    self._answer(fields, descriptors)
            if time.monotonic() >= self._next_look_s:
                self._watch()
                self._next_look_s = time.monotonic() + _LOOK_S

    def _begin_run(self, fields: Fields) -> None:
        """Hold a run's limits from now on, without an answer: {"id", "memory", "processes", "cpu_s"}."""
        watch = self._watches.get(fields["id"])
        if watch is not None:
            watch.begin_run(fields)

    def _watch(self) -> None:
        """End sessions that break a limit, between runs too; those that were cloned stand still."""
        for pid in {*self._watches} - {*self._parents.values()}:
            self._watches[pid].hold_limits()

    def _answer(self, fields: Fields, descriptors: list[int]) -> None:
        """Answer a request on the first of its descriptors, at once or when its helper process has ended."""
        reply = socket.socket(fileno=descriptors[0])
        try:
            answer = getattr(self, f"do_{fields['op']}")(fields, descriptors[1:])
            if isinstance(answer, HelperTask):
                self._start_helper(answer, reply)
                return
        except (OSError, LookupError, ValueError) as error:
            answer = {"failed": f"{fields['op']}: {error}"}
        finally:
            for descriptor in descriptors[1:]:
                os.close(descriptor)
        _send(reply, answer)

    def _start_helper(self, task: HelperTask, reply: socket.socket) -> None:
        """Give a task to a helper process that is free; answer when it is done."""
        helper = self._idle.pop() if self._idle else start_helper()
        helper.channel.send(json.dumps([task.work, task.arguments]).encode())

        def finish() -> None:
            self._selector.unregister(helper.channel)
            report = json.loads(helper.channel.recv(MAX_PACKET) or b'{"refused": "it takes too long to be copied"}')
            if "ids" in report:
                answer = task.finish(report["ids"])
            else:
                task.undo()
                answer = report
            _send(reply, answer)
            if "ids" in report and task.work == CHECK and len(self._idle) < _MAX_IDLE:
                self._idle.append(helper)
            else:
                helper.channel.close()
                self._ended.append(helper.pid)
            if task.work == CHECK or "ids" not in report:  # the fork is over: nobody waits for what follows
                self._restock()

        self._selector.register(helper.channel, selectors.EVENT_READ, finish)

    def _restock(self) -> None:
        """Wait for the helper processes that have ended, and have two ready: one to copy and one to check."""
        while self._ended:
            os.waitpid(self._ended.pop(), 0)
        while len(self._idle) < 2:
            self._idle.append(start_helper())

    # ---- requests --------------------------------------------------------------------------------------------

    def do_spawn(self, fields: Fields, descriptors: list[int]) -> Fields:
        """Start a session on the socket sent along: the kernel's {"limits"}, {"disk", "output", "memory",
        "processes", "cpu_s"} -> {"ids"}, of one."""
        waiting, going = os.pipe()
        try:
            pid = clone_into_namespaces()
            if pid == 0:
                os.close(going)
                os.read(waiting, 1)
                _become_session(fields, descriptors[0], self._seccomp)
            try:
                map_user(pid, self._user)
            except OSError:
                end(pid)
                raise
        finally:
            os.close(waiting)
            os.close(going)
        self._parents[pid], self._sizes[pid] = 0, (fields["disk"], fields["output"])
        self._watches[pid] = SessionWatch(pid, fields)
        return {"ids": [pid]}

    def do_adopt(self, fields: Fields, descriptors: list[int]) -> HelperTask:
        """Stop a session that has cloned itself, give each clone a copy of its files: {"id", "sockets"} -> {"ids"}."""
        origin, sockets = fields["id"], fields["sockets"]

        def finish(ids: list[int]) -> Fields:
            for pid in ids:
                self._parents[pid], self._sizes[pid] = origin, self._sizes[origin]
                self._watches[pid] = SessionWatch(pid, self._watches[origin].limits)
            return {"ids": ids}

        def undo() -> None:
            self._undo(origin, [pid for pid in children_of(origin) if is_apart(pid, origin)])

        return HelperTask(COPY, (origin, sockets, self._sizes.get(origin, (0, 0)), self._user), finish, undo)

    def do_check(self, fields: Fields, descriptors: list[int]) -> HelperTask:
        """See that clones hold nothing of others: {"id", "ids", "sockets"} -> {}."""

        def finish(ids: list[int]) -> Fields:
            for pid in ids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            return {}

        arguments = fields["ids"], fields["sockets"]
        return HelperTask(CHECK, arguments, finish, lambda: self._undo(fields["id"], fields["ids"]))

    def _undo(self, origin: int, clones: list[int]) -> None:
        for pid in clones:
            end(pid)
            self._parents.pop(pid, None)
            self._sizes.pop(pid, None)
            self._watches.pop(pid, None)
        with suppress(ProcessLookupError):
            os.kill(origin, signal.SIGCONT)

    def do_undo(self, fields: Fields, descriptors: list[int]) -> Fields:
        """End clones, and let the session that was cloned go on: {"id", "ids"} -> {}."""
        self._undo(fields["id"], fields["ids"])
        return {}

    def do_usage(self, fields: Fields, descriptors: list[int]) -> Fields:
        """Answer what a session has used since its run began: {"id"} -> {"cpu_s", "memory", "processes"}."""
        return dict(self._watches[fields["id"]].measure()._asdict())

    def do_ending(self, fields: Fields, descriptors: list[int]) -> Fields:
        """Answer the limit that ended a session, EXITED where none did: {"id"} -> {"ending"}."""
        watch = self._watches.get(fields["id"])
        return {"ending": watch.ending if watch else "EXITED"}

    def do_interrupt(self, fields: Fields, descriptors: list[int]) -> Fields:
        """Raise KeyboardInterrupt in a session: {"id"} -> {}."""
        with suppress(ProcessLookupError):
            os.kill(fields["id"], signal.SIGINT)
        return {}

    def do_kill(self, fields: Fields, descriptors: list[int]) -> Fields:
        """End sessions, and what they were cloned from where nothing else was: {"ids"} -> {}."""
        for pid in fields["ids"]:
            is_wanted = True
            while is_wanted and pid in self._parents and pid not in self._parents.values():
                end(pid)
                del self._sizes[pid], self._watches[pid]
                pid = self._parents.pop(pid)
                is_wanted = pid != 0 and state_of(pid) == "T"  # who was cloned stands still; others are the host's
        return {}


def _become_session(fields: Fields, descriptor: int, seccomp: bytes) -> None:
    """Turn a fresh clone of the supervisor into a session; never returns."""
    code = 1
    try:
        os.dup2(descriptor, 3)
        clean_descriptors([3])
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        clean_descriptors([3])
        mount("none", "/", RECURSIVE | PRIVATE)
        for path in _HIDDEN:
            if os.path.isdir(path):
                mount("tmpfs", path, READ_ONLY | NO_SUID | NO_DEV, "size=4k,mode=555")
        mount_places(fields["disk"], fields["output"])
        os.chdir(WORK)
        for kind, value in fields["limits"]:
            resource.setrlimit(kind, (value, value))
        drop_capabilities()
        filter_calls(seccomp)
        Interpreter(socket.socket(fileno=3), fields["output"]).serve()
        code = 0
    finally:
        os._exit(code)


def _send(reply: socket.socket, answer: Fields) -> None:
    """Answer, with a descriptor of each process that is new; with none where one of them has ended already."""
    processes: list[int] = []
    try:
        with suppress(ProcessLookupError):
            for pid in answer.get("ids", ()):
                processes.append(os.pidfd_open(pid))
        is_complete = len(processes) == len(answer.get("ids", ()))
        with reply, suppress(OSError):  # the host waits no longer
            socket.send_fds(reply, [json.dumps(answer).encode()], processes if is_complete else [])
    finally:
        for process in processes:
            os.close(process)


def main() -> None:
    """Serve until the host closes its end. argv: the filter for sessions in hexadecimal, the user's number."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    supervisor = SessionSupervisor(bytes.fromhex(sys.argv[1]), sys.argv[2])
    warm_up()
    control.send(b"{}")
    supervisor.serve(control)


if __name__ == "__main__":
    main()
