"""What runs beside a command of a shell session, inside the sandbox; sent there as text, standard library only.

Standard input: a line of JSON, then the contents of files. It lays the files into a directory of its own, runs the
command, ends all that the command left running, and writes what is in the directory now: a line of JSON, the command's
output, the contents of changed files. The command can do to all this what it likes: it speaks of its own files only,
and whoever reads it believes nothing else.
"""

import json
import os
import resource
import select
import signal
import stat
import sys
import time
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

DIRECTORY = "work"
_CWD = 9
"""Descriptor that the shell tells its last directory to."""
_CHUNK = 65536
_DYING_S = 5.0
_LAST_OUTPUT_S = 0.5
"""Seconds for programs that still hold the output when the shell has ended."""
_LAST_NS = 2**62
Job = dict[str, Any]  # decoded JSON
Mark = tuple[int, int, int, int]


class CommandEnd(NamedTuple):
    code: int
    ending: str
    output: bytes
    cwd: str
    seconds: float


class TooMuchToKeep(Exception):
    """The directory holds more than may be kept."""


def main() -> None:
    """Do one job."""
    source = os.fdopen(0, "rb", closefd=False)
    job: Job = json.loads(source.readline())
    root = os.path.join(os.getcwd(), DIRECTORY)
    marks = unpack(root, job["entries"], source)
    ran = run(job, root)
    if job["alone"]:
        end_others()
    head: Job = {"code": ran.code, "ending": ran.ending, "cwd": ran.cwd, "seconds": ran.seconds}
    head |= {"size": len(ran.output), "reason": None, "entries": []}
    changed: list[str] = []
    try:
        head["entries"], changed = pack(root, marks, job)
    except (TooMuchToKeep, OSError) as error:
        head["reason"] = str(error)
    with os.fdopen(1, "wb", closefd=False) as target:
        target.write(json.dumps(head).encode() + b"\n" + ran.output)
        for path in changed:
            with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
                while chunk := file.read(_CHUNK):
                    target.write(chunk)


def unpack(root: str, entries: list[list[Any]], source: BinaryIO) -> dict[str, tuple[int, Mark]]:
    """Lay entries (path, kind, mode, time, size) out; return what tells later whether a file is the same."""
    os.mkdir(root)
    marks: dict[str, tuple[int, Mark]] = {}
    for path, kind, _, _, size in entries:
        place = os.path.join(root, path)
        if kind == "directory":
            os.mkdir(place)
        elif kind == "link":
            os.symlink(source.read(size), os.fsencode(place))
        else:
            with open(place, "wb") as file:
                file.write(source.read(size))
    for index, (path, kind, mode, mtime, _) in reversed(list(enumerate(entries))):
        place = os.path.join(root, path)
        if kind != "link":
            os.chmod(place, mode)
        if kind == "file":
            os.utime(place, ns=(mtime, mtime))
            marks[path] = (index, _mark(os.lstat(place)))
    return marks


def run(job: Job, root: str) -> CommandEnd:
    """Run the command until it ends or a limit ends it."""
    begun = time.monotonic()
    reading, output_end = os.pipe()
    where, cwd_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            _become_shell(job, root, output_end, cwd_end)
        os._exit(126)
    os.close(output_end)
    os.close(cwd_end)
    output, ending = _follow(pid, reading, begun + job["wall_s"], job["output"])
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if ending == "EXITED" and code < 0:
        # The kernel holds the limit in ticks, which on a busy machine run ahead of the time that wait4 tells.
        is_cpu = -code in (signal.SIGXCPU, signal.SIGKILL) and used.ru_utime + used.ru_stime > 0.5 * job["cpu_s"]
        ending = "CPU_TIME" if is_cpu else "SIGNALED"
    os.set_blocking(where, False)
    last = b""
    with suppress(BlockingIOError):
        last = os.read(where, 4096)
    cwd = os.fsdecode(last).rstrip("\n") or job["cwd"]
    cwd = os.path.relpath(cwd, root) if cwd.startswith(root) else cwd
    return CommandEnd(128 - code if code < 0 else code, ending, output, cwd, time.monotonic() - begun)


def _become_shell(job: Job, root: str, output_end: int, cwd_end: int) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (output_end, 1), (output_end, 2), (cwd_end, _CWD)):
        os.dup2(descriptor, number)
    os.closerange(3, _CWD)
    os.closerange(_CWD + 1, 64)
    for kind, value in job["limits"]:
        hard, ours = value + (kind == resource.RLIMIT_CPU), resource.getrlimit(kind)[1]
        hard = hard if ours == resource.RLIM_INFINITY else min(hard, ours)
        resource.setrlimit(kind, (min(value, hard), hard))
    os.chdir(root)
    with suppress(OSError):
        os.chdir(job["cwd"])
    os.environ["PWD"] = os.getcwd()
    shell = "bash" if any(os.access(f"{place}/bash", os.X_OK) for place in os.get_exec_path()) else "sh"
    os.execvp(shell, [shell, "-c", f"trap 'pwd -P >&{_CWD} 2>/dev/null' EXIT; {job['command']}"])


def _follow(pid: int, reading: int, deadline: float, most: int) -> tuple[bytes, str]:
    """Collect the output until the shell ends, and of what it leaves running for a moment; end it at a limit.

    Programs that read what the shell writes, as in `exec > >(tee log)`, write their last lines after it has ended.
    """
    output, ending = bytearray(), "EXITED"
    process = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(process, select.POLLIN)
    is_over = has_ended = is_all_read = False
    while not is_over:
        left = deadline - time.monotonic()
        ready = dict(poll.poll(max(0.0, 1000 * left)))
        if left <= 0:
            ending, is_over = ending if has_ended else "WALL_TIME", True
        elif process in ready:
            has_ended = True
            deadline = min(deadline, time.monotonic() + _LAST_OUTPUT_S)
            poll.unregister(process)
        if reading in ready and not is_over:
            chunk = os.read(reading, _CHUNK)
            output += chunk
            if not chunk:
                poll.unregister(reading)
                is_all_read = True
        is_over = is_over or (has_ended and is_all_read)
        if len(output) > most:
            ending, is_over = "OUTPUT", True
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.set_blocking(reading, False)
    with suppress(BlockingIOError):
        while len(output) <= most and (chunk := os.read(reading, _CHUNK)):
            output += chunk
    return bytes(output[:most]), "OUTPUT" if len(output) > most else ending


def end_others() -> None:
    """End every other process of the sandbox: nothing runs between two commands."""
    deadline = time.monotonic() + _DYING_S
    while time.monotonic() < deadline:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.001)


def pack(root: str, marks: dict[str, tuple[int, Mark]], job: Job) -> tuple[list[list[Any]], list[str]]:
    """Return the directory's entries, and the changed files. Raises: TooMuchToKeep: they are too large or too many."""
    entries: list[list[Any]] = []
    changed: list[str] = []
    total, waiting = 0, [""]
    while waiting:
        folder = waiting.pop()
        place = os.path.join(root, folder)
        os.chmod(place, os.lstat(place).st_mode & 0o777 | 0o700)
        for name in sorted(os.listdir(place)):
            path, full = os.path.join(folder, name), os.path.join(place, name)
            status = os.lstat(full)
            mode, size, index = stat.S_IMODE(status.st_mode) & 0o777, 0, -1
            if stat.S_ISDIR(status.st_mode):
                kind = "directory"
                waiting.append(path)
            elif stat.S_ISREG(status.st_mode):
                kind, size = "file", status.st_size
                before, mark = marks.get(path, (-1, None))
                if mark == _mark(status):
                    index = before
                else:
                    os.chmod(full, mode | 0o400)
                    changed.append(full)
            elif stat.S_ISLNK(status.st_mode):
                target = os.readlink(full)
                kind, size, index = "link", 0, -1
                entries.append([path, kind, mode, 0, size, index, target])
                continue
            else:
                continue  # pipes, sockets
            total += size
            mtime = min(max(0, status.st_mtime_ns), _LAST_NS)
            entries.append([path, kind, mode, mtime, size, index, ""])
            if total > job["disk"]:
                raise TooMuchToKeep("its files are too large")
            if len(entries) > job["max_entries"]:
                raise TooMuchToKeep("it has too many files")
    return entries, changed


def _mark(status: os.stat_result) -> Mark:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
