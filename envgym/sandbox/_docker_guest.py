"""The first process in a container: waits for one program, runs it, sees to its limits, tells how it ended.

Standard library only. The host sends it, with what it imports, over the container's standard input, and then an
order: a line of JSON {"argv", "files": {path: size}, "stdin": size, "token", "cpu_s", "memory", "limits": [[kind,
value], ...]}, and the bytes of the files and of the program's standard input. Any further byte, and the end of the
input, stop the program. What the program says goes straight to the container's output; the report comes last on both
streams, when no other process is left, and begins with the token, so that a program cannot write one.

The program runs as the same user but can neither trace, signal, limit nor read this process.
"""

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import time
from contextlib import suppress
from typing import Any, BinaryIO

from envgym.sandbox._namespaces import filter_calls
from envgym.sandbox._seccomp import own_limits_only, seccomp_filter
from envgym.sandbox._tree import Usage, UsageMeter

READY = b"ready\n"
REPORT_SIZE = 256
"""Bytes of a report: the token and padded JSON {"code", "cpu_s", "memory", "over"} or {"absent"} or {"failed"}."""
WORK = "/tmp"
_LOOK_S = 0.02
_MAX_NUM_FILES = 50_000
_DUMPABLE = 4

Fields = dict[str, Any]  # decoded JSON


def main(source: BinaryIO) -> None:
    """Serve one order, and end."""
    ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)  # hides this process's memory and descriptors
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a first process does not heed
    os.write(1, READY)
    line = source.readline()
    if not line:
        return  # the host has gone
    order = json.loads(line)
    try:
        for path, size in order["files"].items():
            os.makedirs(os.path.dirname(f"{WORK}/{path}"), exist_ok=True)
            with open(f"{WORK}/{path}", "wb") as file:
                file.write(_exactly(source, size))
            os.chmod(f"{WORK}/{path}", 0o755)
        stdin = os.memfd_create("stdin")
        with open(stdin, "wb", closefd=False) as file:
            file.write(_exactly(source, order["stdin"]))
        os.lseek(stdin, 0, os.SEEK_SET)
        report = _run(order, stdin)
    except OSError as error:
        report = {"failed": error.strerror or str(error)}
    packet = (order["token"] + json.dumps(report)).ljust(REPORT_SIZE)[:REPORT_SIZE].encode()
    for stream in (1, 2):
        os.set_blocking(stream, True)
        os.write(stream, packet)


def _exactly(source: BinaryIO, size: int) -> bytes:
    content = source.read(size)
    if len(content) < size:
        os._exit(1)  # the host has gone
    return content


def _run(order: Fields, stdin: int) -> Fields:
    assert os.getpid() == 1, "in a container alone: all other processes are killed at the end"
    name = order["argv"][0]
    if "/" not in name and shutil.which(name) is None:
        return {"absent": name[:100]}
    pid = os.fork()
    if pid == 0:
        _become(order, stdin)
    os.close(stdin)
    code, over, peak = _follow(pid, order)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = round(used.ru_utime + used.ru_stime, 3)
    return {"code": code, "cpu_s": cpu_s, "memory": max(peak, used.ru_maxrss * 1024), "over": over}


def _become(order: Fields, stdin: int) -> None:
    """Turn a fresh child into the program; never returns."""
    try:
        os.setsid()
        os.dup2(stdin, 0)
        os.closerange(3, 100)
        os.chdir(WORK)
        for kind, value in order["limits"]:
            resource.setrlimit(kind, (value, value + (kind == resource.RLIMIT_CPU)))
        for rules in (seccomp_filter(sockets=True), own_limits_only()):
            filter_calls(rules)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(order["argv"][0], order["argv"], _environment())
    except OSError as error:
        os.write(2, f"{order['argv'][0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _environment() -> dict[str, str]:
    """Return the environment variables of every program, whatever the image and the engine set."""
    path = os.environ.get("PATH", os.defpath)
    common = {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    return {"PATH": path, "HOME": WORK, "TMPDIR": WORK, "PWD": WORK, **common}


def _follow(first: int, order: Fields) -> tuple[int, str | None, int]:
    """Wait until the program ends or breaks a limit, end all processes; return its code, the limit, the peak."""
    waking, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    meter = UsageMeter(os.getpid(), has_own_network=True)
    over, peak, look = None, 0, time.monotonic() + _LOOK_S
    while over is None and (code := _reap(first)) is None:
        ready, _, _ = select.select([0, waking], [], [], max(0.0, look - time.monotonic()))
        if waking in ready:
            os.read(waking, 4096)
        if time.monotonic() >= look:
            used = _used_by_others(meter.measure(order["memory"] + _own_memory()))
            over, peak, look = _over(used, order), max(peak, used.memory), time.monotonic() + _LOOK_S
        if 0 in ready:
            over = "HOST"  # it tells to stop, or has gone
    if over is not None:
        code = -signal.SIGKILL
    _end_all()
    return code or 0, "MEMORY" if _was_out_of_memory() else over, peak


def _reap(first: int) -> int | None:
    """Wait for those that have ended, orphans among them; return how the first one did, None while it runs."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == first:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            return None


def _end_all() -> None:
    with suppress(ChildProcessError):
        while True:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            os.waitpid(-1, 0)


def _used_by_others(used: Usage) -> Usage:
    own = os.times()
    return Usage(used.cpu_s - own.user - own.system, used.memory - _own_memory(), used.processes - 1)


def _own_memory() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def _over(used: Usage, order: Fields) -> str | None:
    if _was_out_of_memory():
        return "MEMORY"
    if used.memory > order["memory"]:
        return "MEMORY"
    if used.cpu_s > order["cpu_s"]:
        return "CPU_TIME"
    system = os.statvfs(WORK)
    return "DISK" if system.f_files - system.f_ffree > _MAX_NUM_FILES else None


def _was_out_of_memory() -> bool:
    """Tell whether the kernel has killed a process of this container for its memory."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with suppress(OSError), open(path, encoding="ascii") as events:
            return any(int(line.split()[1]) > 0 for line in events if line.startswith("oom_kill "))
    return False
