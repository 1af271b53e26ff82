"""The small process that starts sandboxes: run as a script by `envgym.sandbox._launcher_client`, never imported by it.

It is small and has one thread, so starting a process from it is quick and safe whatever the host process holds, and
what a sandbox uses can be measured. It serves from a clone that is the first process of a PID namespace of its own: the
kernel ends all that it has started when it ends, however that comes and whatever a sandbox was doing. The clone's root
holds what sandboxes need and nothing else of the machine; started as root, it becomes `nobody` before it serves. So a
sandbox holds no right of root, and sees no file of the host, even where every namespace around it fails.

Standard library only. argv: number of the control socket, JSON of the root: {"binds": {path: source}, "links": {path:
text}, "copies": [path], "hidden": [path]}. Answers {"enclosed": bool} or {"failed": why}.
Request: JSON {"bwrap": path, "options": [...], "argv": [...], "limits": [[kind, value], ...]}; in the options ["fd", i]
stands for the i-th descriptor sent along. The first four are standard input, output, error and the report's socket;
number n, after the last, is where bwrap tells its child's id. The report gets {"stands"} with a descriptor of the first
process when the sandbox stands, limited, behind its gate, and {"code", "cpu_s", "memory"} when all of it has ended. A
report that is closed ends the sandbox.
"""

import ctypes
import json
import os
import platform
import resource  # also os.wait4's, which could not read it any more as nobody
import selectors
import shutil
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

MAX_REQUEST = 150_000
MAX_DESCRIPTORS = 240
NOBODY = 65534
_ROOT = "/tmp"
_PARENT_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36
_NEWNS, _NEWUSER, _NEWPID = 0x20000, 0x10000000, 0x20000000
_READ_ONLY, _NO_SUID, _NO_DEV, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 0x20, 0x1000, 0x4000, 0x40000
_DETACH = 2
_CLONE = {"x86_64": 56, "aarch64": 220}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_libc = ctypes.PyDLL(None, use_errno=True)


def main() -> None:
    """Serve until the host process closes its end."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)  # a sandbox must not talk to its launcher
    is_root = os.geteuid() == 0
    try:
        clone = _clone_enclosed(json.loads(sys.argv[2]))
    except OSError as error:
        if is_root:
            control.send(json.dumps({"failed": error.strerror or str(error)}).encode())
            return
        _libc.prctl(_CHILD_SUBREAPER, 1)  # what bwrap leaves is waited for here
        clone = None
    if clone:
        control.close()
        os.waitpid(clone, 0)
        return
    with suppress(BrokenPipeError):  # the host process has ended meanwhile
        control.send(json.dumps({"enclosed": clone == 0}).encode())
    _Launcher(control).serve()


class _SandboxRequest:
    """What bwrap is asked for, and becomes."""

    def __init__(self, pid: int, info: int, report: int) -> None:
        self.pid = pid
        """Bwrap's own."""
        self.process = os.pidfd_open(pid)
        self.info = info
        """Where bwrap tells the first process inside."""
        self.report = report
        self.first = 0
        self.inside = -1
        """A descriptor of the first process."""

    def limit(self, limits: list[tuple[int, int]]) -> None:
        """Limit the first process, which waits behind its gate, and report that it stands."""
        info = b""
        while b"}" not in info and (more := os.read(self.info, 4096)):
            info += more
        if not info:
            return  # its end is reported
        with suppress(ProcessLookupError):
            self.first = int(json.loads(info)["child-pid"])
            self.inside = os.pidfd_open(self.first)
            for kind, value in limits:
                hard = value + (kind == resource.RLIMIT_CPU)  # a signal that tells why comes one second before the kill
                resource.prlimit(self.first, kind, (value, hard))
            self._tell({"stands": True}, self.inside)

    def kill(self) -> None:
        """Kill all of it: the first process may not yet follow bwrap by itself."""
        for process in (self.inside, self.process):
            with suppress(OSError):  # ended, or not there yet
                signal.pidfd_send_signal(process, signal.SIGKILL)

    def end(self) -> None:
        """Report how bwrap ended, and what was used below the first process: all of it is gone when that one is."""
        _, status, used = os.wait4(self.pid, 0)
        self.kill()
        all_used = [used]
        with suppress(ChildProcessError):  # bwrap may have waited for it
            all_used += [os.wait4(self.first, 0)[2]] if self.first else []
        cpu_s = sum(used.ru_utime + used.ru_stime for used in all_used)
        memory = max(used.ru_maxrss for used in all_used) * 1024
        self._tell({"code": os.waitstatus_to_exitcode(status), "cpu_s": cpu_s, "memory": memory})
        for descriptor in (self.report, self.process, self.inside, self.info):
            with suppress(OSError):  # some are closed already
                os.close(descriptor)

    def _tell(self, fields: dict[str, float], *descriptors: int) -> None:
        with socket.socket(fileno=os.dup(self.report)) as report, suppress(OSError):
            socket.send_fds(report, [json.dumps(fields).encode()], descriptors)


class _Launcher:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._sandboxes: dict[int, _SandboxRequest] = {}
        self._is_over = False

    def serve(self) -> None:
        self._selector.register(self._control, selectors.EVENT_READ, (2, self._start))
        while not self._is_over:
            # A sandbox that stands is looked at before one that has ended: it may be the same.
            for key, _ in sorted(self._selector.select(), key=lambda ready: ready[0].data[0]):
                if self._selector.get_map().get(key.fd) is key:
                    key.data[1]()

    def _start(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._control, MAX_REQUEST, MAX_DESCRIPTORS)
        if not message:
            self._is_over = True
            return
        order = json.loads(message)
        sandbox = _SandboxRequest(*_spawn(order, descriptors), descriptors[3])
        self._sandboxes[sandbox.pid] = sandbox

        def limit() -> None:
            self._selector.unregister(sandbox.info)
            sandbox.limit(order["limits"])

        def end() -> None:
            for descriptor in (sandbox.process, sandbox.info, sandbox.report):
                with suppress(KeyError):
                    self._selector.unregister(descriptor)
            sandbox.end()
            del self._sandboxes[sandbox.pid]
            if not sandbox.first:
                self._end_orphans()

        def hang_up() -> None:
            self._selector.unregister(sandbox.report)
            sandbox.kill()

        self._selector.register(sandbox.info, selectors.EVENT_READ, (0, limit))
        self._selector.register(sandbox.process, selectors.EVENT_READ, (1, end))
        self._selector.register(sandbox.report, selectors.EVENT_READ, (1, hang_up))

    def _end_orphans(self) -> None:
        """End what a bwrap that ended before it could tell of it has left, and wait for it."""
        with open("/proc/thread-self/children", encoding="ascii") as children:
            left = {int(child) for child in children.read().split()} - {*self._sandboxes}
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _spawn(order: dict[str, Any], descriptors: list[int]) -> tuple[int, int]:  # Any: decoded JSON
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


# ---- the enclosure ---------------------------------------------------------------------------------------------------


def _clone_enclosed(root: dict[str, Any]) -> int:  # Any: decoded JSON
    """Clone this process into an enclosure; return 0 in the clone, else its id. Raises: OSError: it cannot be made."""
    is_root, user, group = os.geteuid() == 0, os.geteuid(), os.getegid()
    ours, theirs = socket.socketpair()
    flags = _NEWNS | _NEWPID | (0 if is_root else _NEWUSER)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_libc.syscall(_CLONE[platform.machine()], flags | signal.SIGCHLD, 0, 0, 0, 0))
    error = ctypes.get_errno()
    if pid != 0:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        theirs.close()
        if pid < 0:
            raise OSError(error, os.strerror(error))
        with ours:
            if byte := ours.recv(1):  # it is bound to this process' life, and may serve as long as that lasts
                _become_nobody()
                ours.send(byte)
                return pid
        _, status = os.waitpid(pid, 0)
        error = os.waitstatus_to_exitcode(status)
        raise OSError(error, os.strerror(error))
    ctypes.pythonapi.PyOS_AfterFork_Child()
    ours.close()
    try:
        if not is_root:
            _map_user(user, group)
        _enter_root(root, is_root)
        _become_nobody()
        _check(_libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL))
        with theirs:
            theirs.send(b"1")
            if not theirs.recv(1):
                os._exit(0)
    except OSError as failure:
        os._exit(failure.errno or 1)
    return 0


def _enter_root(root: dict[str, Any], is_root: bool) -> None:
    """Make a root of what sandboxes need, and leave the machine's behind."""
    binds = {path: os.open(source, os.O_PATH) for path, source in root["binds"].items()}
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    copies = {path: os.open(path, os.O_PATH) for path in root["copies"] if os.path.exists(path)}
    devices = os.open("/dev", os.O_PATH)
    _mount("envgym", _ROOT, "tmpfs", _NO_SUID | _NO_DEV, "mode=755,size=16m")
    for path, descriptor in copies.items():
        source, target = f"/proc/self/fd/{descriptor}", _ROOT + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source + "/", target, symlinks=True)
        else:
            shutil.copyfile(source, target)
    for path, descriptor in binds.items():
        os.makedirs(_ROOT + path)
        _mount(f"/proc/self/fd/{descriptor}", _ROOT + path, None, _BIND | _RECURSIVE)
    for path, text in root["links"].items():
        os.symlink(text, _ROOT + path)
    for path in ("/tmp", "/proc", "/dev"):
        os.makedirs(_ROOT + path, exist_ok=True)
    # A user namespace may not look below the mounts that came with it.
    _mount(f"/proc/self/fd/{devices}", _ROOT + "/dev", None, _BIND | (0 if is_root else _RECURSIVE))
    _mount("proc", _ROOT + "/proc", "proc", _NO_SUID | _NO_DEV)
    for path in root["hidden"]:
        if os.path.isdir(_ROOT + path):
            _mount("envgym", _ROOT + path, "tmpfs", _READ_ONLY | _NO_SUID | _NO_DEV, "mode=755,size=4k")
    for descriptor in (*binds.values(), *copies.values(), devices):
        os.close(descriptor)
    os.chdir(_ROOT)
    _check(_libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."))
    _check(_libc.umount2(b".", _DETACH))
    os.chdir("/")
    _mount("envgym", "/", None, _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEV)


def _map_user(user: int, group: int) -> None:
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _check(_libc.mount(source.encode(), target.encode(), kind and kind.encode(), flags, options.encode()))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main()
