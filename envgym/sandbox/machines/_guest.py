"""The first process of a machine: carries out the orders of the host, one after the other, and waits for orphans.

Standard library only; it runs from a read-only volume with its own interpreter and libraries, so that nothing in the
image can change it. An order is a frame on standard input, an answer a frame on standard output: sizes of a header in
JSON and of a payload, then both. Programs get neither of the two streams, and cannot trace, limit or end this process.
When the host hangs up, this process ends, and with it the machine.
"""

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from envgym.sandbox._seccomp import machine_filter
from envgym.sandbox.machines import _guest_files as files
from envgym.sandbox.machines._guest_frames import Fields, Output, Payload, drain, hang_up, read_order, read_some, send
from envgym.sandbox.machines._guest_processes import (
    PATH,
    WATCHED,
    Key,
    Rules,
    UserIds,
    environment,
    find_user,
    is_program,
    kill_all,
    kill_new,
    processes,
    reap,
    spawn,
)
from envgym.sandbox.machines._guest_shell import Shell

_DUMPABLE = 4
_LOOK_S = 0.1
"""Between two looks at the disk."""
_ASK_S = 2.0
"""Between two questions to the host, while programs run, for what the machine has written."""
_ASK_SHARE = 10
"""Times as long as the host took to answer the last question, if that is longer."""
_MAX_DRAINS = 200
"""Outputs of processes in the background that are read, and dropped."""


class Unfit(Exception):
    """An order cannot be carried out: what must be how, and what was given instead."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    ending: str


class Guest:
    """Serves one machine."""

    def __init__(self, settings: Fields) -> None:
        self._rules = Rules(machine_filter(), settings["disk"])
        self._disk_limit: int = settings["disk"]
        self._disk_known, self._disk_base = 0, _disk_used()
        self._ask_at = time.monotonic() + _ASK_S
        self._is_frozen = False
        self._shells: dict[str, Shell] = {}
        self._drains: list[int] = []
        self._waking, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Carry out orders until the host hangs up."""
        orders: Mapping[str, Callable[[Fields, int], None]] = {
            "run": self._run,
            "put": self._put,
            "get": self._get,
            "end": self._end_processes,
            "busy": self._tell_busy,
        }
        while True:
            self._rest()
            order, size = read_order()
            try:
                orders[order["do"]](order, size)
            except Unfit as refusal:
                send({"refused": refusal.args})
            except files.TooMuch as error:
                send({"failed": str(error)})
            except OSError as error:
                name = f"{error.filename}: " if isinstance(error.filename, str) else ""
                send({"failed": f"{name}{error.strerror or error}"})

    # ---- waiting

    def _rest(self) -> None:
        """Wait for an order; meanwhile wait for orphans, drop the output of the background, watch the disk."""
        begun = time.monotonic()
        while 0 not in self._wait(_LOOK_S * 5 if self._has_background() else None):
            if not self._is_frozen and self._has_background() and self._is_disk_full():
                with suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGSTOP)  # until the host has looked
                self._is_frozen = True
        if not self._has_background():  # nothing wrote meanwhile
            self._ask_at += time.monotonic() - begun

    def _thaw(self) -> None:
        if self._is_frozen:
            self._is_frozen = False
            if self._is_over():
                kill_all()
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGCONT)

    def _has_background(self) -> bool:
        with suppress(ChildProcessError):
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return True
        return False

    def _wait(self, seconds: float | None, *others: int) -> set[int]:
        """Wait for an order or stop (0), for one of `others`, or for the end of a child; return what is ready."""
        shells = [shell for shell in self._shells.values() if shell.is_heard and shell.output not in others]
        poll = select.poll()
        for descriptor in (0, self._waking, *others, *(shell.output for shell in shells), *self._drains):
            poll.register(descriptor, select.POLLIN)
        ready = {number for number, _ in poll.poll(None if seconds is None else max(0, int(seconds * 1000) + 1))}
        if self._waking in ready:
            with suppress(BlockingIOError):
                os.read(self._waking, 4096)
        reap()
        for descriptor in ready.intersection(self._drains):
            if read_some(descriptor) == b"":
                self._drains.remove(descriptor)
                os.close(descriptor)
        for shell in shells:
            shell.is_heard = shell.output not in ready or read_some(shell.output) != b""
        return ready

    # ---- commands

    def _run(self, order: Fields, size: int) -> None:
        stdin = os.memfd_create("stdin")
        try:
            for part in Payload(size).all():
                os.write(stdin, part)
            self._thaw()
            os.lseek(stdin, 0, os.SEEK_SET)
            user = find_user(order["user"])
            if user is None:
                raise Unfit("user", "be a user of the machine", order["user"])
            begun, ooms = time.monotonic(), _num_ooms()
            output = Output(order["output"])
            older = frozenset(row.key for row in processes())
            if order["shell"] is None:
                ended, is_lost = self._run_alone(order, user, stdin, older, output), False
            else:
                ended, is_lost = self._run_in_shell(order, user, older, output)
        finally:
            os.close(stdin)
        if ended.code in (-9, 137) and ended.ending == "EXITED" and _num_ooms() > ooms:
            ended = Ended(-1, "MEMORY")
        code, ending = ended
        if code < 0 and ending == "EXITED":
            code, ending = 128 - code, "SIGNALED"
        content, dropped = output.content()
        seconds = time.monotonic() - begun
        send({"code": code, "ending": ending, "seconds": seconds, "dropped": dropped, "lost": is_lost}, content)

    def _run_alone(self, order: Fields, user: UserIds, stdin: int, older: frozenset[Key], output: Output) -> Ended:
        reads, writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writes, True)
        try:
            env = environment(order["env"], user)
            streams = {0: stdin, 1: writes, 2: writes}
            pid = spawn(_argv(order["argv"], env), env, order["workdir"], user, streams, self._rules)
        except BlockingIOError:
            os.close(reads)
            return Ended(-1, "PROCESSES")
        finally:
            os.close(writes)
        ending = self._follow(reads, order["timeout"], output, lambda: WATCHED[pid] is not None)
        if ending is not None:
            kill_new(older)
        code = WATCHED.pop(pid)
        drain(reads, output)
        self._drop_output_of(reads)
        return Ended(code or 0, "EXITED") if ending is None else Ended(-1, ending)

    def _run_in_shell(self, order: Fields, user: UserIds, older: frozenset[Key], output: Output) -> tuple[Ended, bool]:
        name = order["shell"]
        shell = self._shells.get(name)
        was_dead = shell is not None and WATCHED[shell.pid] is not None
        if shell is None or was_dead:
            self._forget_shell(name)
            env = environment(order["env"], user)
            if not is_program("bash", env["PATH"]):
                raise Unfit("bash", "be in the image for a shell that keeps its state", "no such program")
            try:
                shell = Shell(env, order["workdir"], user, self._rules)
            except BlockingIOError:
                return Ended(-1, "PROCESSES"), False
            self._shells[name] = shell
        shell.send(order["argv"][0])
        ending = self._follow(shell.output, order["timeout"], output, shell.is_idle, shell)
        if ending is None and shell.code is not None:
            drain(shell.output, output)
            return Ended(shell.code, "EXITED"), was_dead
        if ending is not None:
            kill_new(frozenset(key for key in older if key[0] != shell.pid))
        code = WATCHED[shell.pid]
        drain(shell.output, output)
        self._forget_shell(name)
        return (Ended(code or 0, "EXITED") if ending is None else Ended(-1, ending)), True

    def _forget_shell(self, name: str) -> None:
        shell = self._shells.pop(name, None)
        if shell is not None:
            WATCHED.pop(shell.pid, None)
            shell.close()
            self._drop_output_of(shell.output)

    def _follow(
        self, reads: int, timeout_s: float, output: Output, is_over: Callable[[], bool], shell: Shell | None = None
    ) -> str | None:
        """Collect output until a command is over; return the limit that it breaks, None if it ends by itself."""
        deadline = time.monotonic() + timeout_s
        look = time.monotonic() + _LOOK_S
        is_open = True
        while not is_over():
            now = time.monotonic()
            if now >= deadline:
                return "WALL_TIME"
            if now >= look:
                if self._is_over():
                    return "DISK"
                look = time.monotonic() + _LOOK_S
            control = [shell.control] if shell is not None and shell.is_connected else []
            ready = self._wait(min(look, deadline) - now, *([reads] if is_open else []), *control)
            if reads in ready and (data := read_some(reads)) is not None:
                output.feed(data)
                is_open = data != b""
            if 0 in ready:
                hang_up()
        return "DISK" if self._is_over() else None

    def _drop_output_of(self, descriptor: int) -> None:
        """Read on what processes in the background write: without a reader they would end."""
        self._drains.append(descriptor)
        if len(self._drains) > _MAX_DRAINS:
            os.close(self._drains.pop(0))

    # ---- the disk

    def _is_disk_full(self) -> bool:
        """Estimate, from the file system that the machine shares with others, whether the limit may be reached."""
        return self._disk_known + _disk_used() - self._disk_base > self._disk_limit

    def _is_over(self) -> bool:
        """Return whether the machine has written more than its limit; the host measures if it may have, and at times.

        Others free space of the file system, which hides what the machine writes from the estimate.
        """
        begun = time.monotonic()
        if not self._is_disk_full() and begun < self._ask_at:
            return False
        send({"look": "disk"})
        answer, _ = read_order()
        self._disk_known, self._disk_base = answer["bytes"], _disk_used()
        now = time.monotonic()
        self._ask_at = now + max(_ASK_S, _ASK_SHARE * (now - begun))
        return self._disk_known > self._disk_limit

    # ---- files, and the rest

    def _put(self, order: Fields, size: int) -> None:
        payload = Payload(size)
        try:
            owner = find_user(order["owner"])
            if owner is None:
                raise Unfit("owner", "be a user of the machine", order["owner"])
            if order["fresh"]:
                files.remove(order["directory"])
            mode = files.directory_mode([mode for _, _, mode in order["files"]])
            making = files.Making(order["directory"], owner, mode)
            with files.opened(order["directory"], making=making):
                pass
            for path, length, mode in order["files"]:
                files.write(making, path, mode, payload.parts(length))
        finally:
            for _ in payload.all():
                pass
        send({"done": True})

    def _get(self, order: Fields, size: int) -> None:
        files.read(order["path"], order["max"], lambda path, part: send({"path": path}, part))
        send({"done": True})

    def _end_processes(self, order: Fields, size: int) -> None:
        for name in list(self._shells):
            self._forget_shell(name)
        kill_all()
        for descriptor in self._drains:
            os.close(descriptor)
        self._drains.clear()
        send({"done": True})

    def _tell_busy(self, order: Fields, size: int) -> None:
        """Tell which processes a copy of the files would lack: all but shells that wait for a command."""
        self._thaw()
        idle = {shell.pid for shell in self._shells.values()}
        send({"busy": sorted({row.name for row in processes() if row.pid not in idle})[:5]})


def _argv(command: list[str], env: Mapping[str, str]) -> list[str]:
    if len(command) != 1:
        return command[1:]
    return ["bash" if is_program("bash", env.get("PATH", PATH)) else "sh", "-c", command[0]]


def _disk_used() -> int:
    system = os.statvfs("/")
    return (system.f_blocks - system.f_bfree) * system.f_frsize


def _num_ooms() -> int:
    """Return how many processes of the machine the kernel has killed for its memory."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with suppress(OSError), open(path, encoding="utf-8") as events:
            return sum(int(line.split()[1]) for line in events if line.startswith("oom_kill "))
    return 0


def main() -> None:
    """Serve a machine; the first order says how."""
    assert os.getpid() == 1, "it kills all other processes that it sees"
    ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)  # hides this process's memory and descriptors
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a first process does not heed
    os.umask(0o022)
    settings, _ = read_order()
    guest = Guest(settings)
    send({"ready": True})
    guest.serve()
