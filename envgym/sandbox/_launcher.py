"""The small process that starts sandboxes: run as a script by `envgym.sandbox._launching`, never imported by it.

It is small and has one thread, so starting a process from it is quick and safe whatever the host process holds, and
what a sandbox uses can be measured. As root it binds what sandboxes need under /tmp of a mount namespace of its own and
becomes `nobody`: a sandbox then holds no right of root even where every namespace around it fails.

Standard library only. argv: number of the control socket, JSON list of directories to bind.
Request: JSON {"bwrap": path, "options": [...], "argv": [...], "limits": [[kind, value], ...]}; in the options ["fd", i]
stands for the i-th descriptor sent along. The first four are standard input, output, error and the report; number n,
after the last, is where bwrap tells its child's id. The report gets a line {"pid"} when the sandbox stands, limited,
behind its gate, and {"code", "cpu_s", "memory"} when all of it has ended.
"""

import ctypes
import json
import os
import resource  # also os.wait4's, which could not read it any more as nobody
import selectors
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MAX_REQUEST = 150_000
MAX_DESCRIPTORS = 240
NOBODY = 65534
BINDS = "/tmp"
_CHILD_SUBREAPER = 36
_NEWNS, _BIND, _RECURSIVE, _PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


def main() -> None:
    """Serve until the host process closes its end."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)  # a sandbox must not talk to its launcher
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1)  # what bwrap leaves is waited for here
    ready: dict[str, object] = {"binds": {}}
    if os.geteuid() == 0:
        try:
            ready = {"binds": _become_nobody(json.loads(sys.argv[2]))}
        except OSError as error:
            ready = {"failed": f"{error.strerror or error}"}
    control.send(json.dumps(ready).encode())
    if "failed" not in ready:
        _serve(control)


def _serve(control: socket.socket) -> None:
    firsts: dict[int, int] = {}  # bwrap's id -> that of the first process in its sandbox
    with selectors.DefaultSelector() as selector:

        def watch(descriptor: int, then: Callable[[], None]) -> None:
            selector.register(descriptor, selectors.EVENT_READ, then)

        def request() -> bool:
            message, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST, MAX_DESCRIPTORS)
            if message:
                order = json.loads(message)
                pid, info = _start(order, descriptors)
                process, report = os.pidfd_open(pid), descriptors[3]
                watch(info, lambda: firsts.update({pid: _limit(info, report, order["limits"])}))
                watch(process, lambda: _report(pid, firsts.pop(pid, 0), report))
            return bool(message)

        selector.register(control, selectors.EVENT_READ)
        while True:
            # A sandbox that stands is looked at before one that has ended: it may be the same.
            for key, _ in sorted(selector.select(), key=lambda ready: ready[0].data is None):
                if key.data is None:
                    if not request():
                        return
                    continue
                selector.unregister(key.fd)
                key.data()
                os.close(key.fd)


def _start(order: dict[str, Any], descriptors: list[int]) -> tuple[int, int]:  # Any: decoded JSON
    """Start bwrap with the descriptors under the numbers that they have here; return its id and what it tells."""
    info, telling = os.pipe()
    numbers = [*descriptors, telling]
    options = [word if isinstance(word, str) else str(numbers[word[1]]) for word in order["options"]]
    listed = os.memfd_create("options")  # not on the command line, which the program can read
    os.write(listed, "\0".join(options).encode() + b"\0")
    os.lseek(listed, 0, os.SEEK_SET)
    keep = [*descriptors[4:], telling, listed]
    for descriptor in keep:
        os.set_inheritable(descriptor, True)
    for descriptor in descriptors[:4]:
        os.set_inheritable(descriptor, False)
    actions = [(os.POSIX_SPAWN_DUP2, descriptors[standard], standard) for standard in range(3)]
    argv = ["bwrap", "--args", str(listed), "--", *order["argv"]]
    pid = os.posix_spawn(order["bwrap"], argv, {}, file_actions=actions)
    for descriptor in (*descriptors[:3], *keep):
        os.close(descriptor)
    return pid, info


def _limit(info: int, report: int, limits: list[tuple[int, int]]) -> int:
    """Limit the first process of a sandbox, which waits behind its gate; report and return its id, 0 if none stands."""
    said = b""
    while b"}" not in said and (more := os.read(info, 4096)):
        said += more
    if not said:
        return 0  # its end is reported
    pid = int(json.loads(said)["child-pid"])
    with suppress(ProcessLookupError):
        for kind, value in limits:
            hard = value + (kind == resource.RLIMIT_CPU)  # a signal that tells why comes one second before the kill
            resource.prlimit(pid, kind, (value, hard))
        _tell(report, pid=pid)
    return pid


def _report(pid: int, first: int, report: int) -> None:
    """Report how bwrap ended, and what was used below the first process: all of it is gone when that one is."""
    _, status, used = os.wait4(pid, 0)
    all_used = [used]
    with suppress(ChildProcessError):  # bwrap may have waited for it
        all_used += [os.wait4(first, 0)[2]] if first else []
    cpu_s = sum(used.ru_utime + used.ru_stime for used in all_used)
    memory = max(used.ru_maxrss for used in all_used) * 1024
    _tell(report, code=os.waitstatus_to_exitcode(status), cpu_s=cpu_s, memory=memory)
    os.close(report)


def _tell(report: int, **fields: float) -> None:
    with suppress(OSError):
        os.write(report, json.dumps(fields).encode() + b"\n")


def _become_nobody(directories: list[str]) -> dict[str, str]:
    """Bind directories where anyone may read them, drop root; return where each one is now. Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
        call(libc.mount(source.encode(), target.encode(), kind and kind.encode(), flags, options.encode()))

    call(libc.unshare(_NEWNS))
    mount("none", "/", None, _RECURSIVE | _PRIVATE)
    held = [os.open(directory, os.O_PATH | os.O_DIRECTORY) for directory in directories]
    mount("envgym", BINDS, "tmpfs", 0, "mode=755,size=1m")
    places = {}
    for number, (directory, descriptor) in enumerate(zip(directories, held, strict=True)):
        parent = f"{BINDS}/{number}"
        place = places[directory] = f"{parent}/{os.path.basename(directory)}"
        os.makedirs(place)
        mount(f"/proc/self/fd/{descriptor}", place, None, _BIND | _RECURSIVE)
        os.close(descriptor)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    return places


if __name__ == "__main__":
    main()
