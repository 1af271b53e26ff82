"""The processes of a machine, for its guest: who they are, starting one as a user, and killing what a command started.

Standard library only: it runs inside the machine, as process 1 there, and reads users itself, because the C library
would load code of the image for that.
"""

import fcntl
import os
import resource
import signal
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from envgym.sandbox._namespaces import filter_calls

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_LIST = 1 << 20
_CONVERGE_S = 2.0
"""How long the descendants of a command may go on to fork while they are stopped one by one."""

Key = tuple[int, int]
"""A process: its id and when it started, in ticks."""
WATCHED: dict[int, int | None] = {}
"""Children whose ends matter: id -> exit code, None while it runs."""


class UserIds(NamedTuple):
    """Who runs a program."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


class Rules(NamedTuple):
    """What every program is held to."""

    calls: bytes
    """A filter of system calls."""
    file_bytes: int
    """Size of one file."""


class Process(NamedTuple):
    """A line of the table of processes."""

    key: Key
    parent: int
    state: str
    name: str

    @property
    def pid(self) -> int:
        return self.key[0]


def find_user(text: str) -> UserIds | None:
    """Return the ids of `name`, `uid`, `name:group` or `uid:gid`; None if the machine has no such user."""
    if text in ("root", "0"):  # whatever programs have made of the list of users
        return UserIds(0, 0, (0,), "/root")
    name, _, group = text.partition(":")
    rows = _lines("/etc/passwd", 7)
    row = next((row for row in rows if name == row[0]), None) or next((row for row in rows if name == row[2]), None)
    uid = int(row[2]) if row is not None else _number(name)
    if uid is None:
        return None
    groups = _lines("/etc/group", 4)
    gid: int | None = int(row[3]) if row is not None else 0
    if group:
        gid = next((int(line[2]) for line in groups if line[0] == group), _number(group))
    if gid is None:
        return None
    others = () if group or row is None else tuple(int(line[2]) for line in groups if row[0] in line[3].split(","))
    return UserIds(uid, gid, (gid, *others), row[5] if row is not None and row[5].startswith("/") else "/")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and int(text) < 2**32 - 1 else None


def _lines(path: str, columns: int) -> list[list[str]]:
    """Return the entries of a list of users or groups; none if a program has made something else of the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return []
    try:
        content = os.read(descriptor, _MAX_LIST) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)
    rows = [line.split(":") for line in content.decode(errors="replace").split("\n")]
    ids = (2, 3) if columns == 7 else (2,)
    return [row for row in rows if len(row) >= columns and all(_number(row[column]) is not None for column in ids)]


def processes() -> list[Process]:
    """Return the processes of the machine except the first one and those that have ended."""
    rows = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or name == "1":
            continue
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
            fields = rest.split()
            state = fields[0].decode()
            if state not in "ZX":
                command = head.partition(b"(")[2].decode(errors="replace")
                rows.append(Process((int(name), int(fields[19])), int(fields[1]), state, command))
    return rows


def new_ones(older: frozenset[Key]) -> list[Process]:
    """Return the processes that are not in `older` and descend from none of it."""
    rows = {row.pid: row for row in processes()}

    def is_kept(row: Process | None) -> bool:
        seen: set[int] = set()
        while row is not None and row.pid not in seen:
            if row.key in older:
                return True
            seen.add(row.pid)
            row = rows.get(row.parent)
        return False

    return [row for row in rows.values() if not is_kept(row)]


def kill_new(older: frozenset[Key]) -> None:
    """Kill all processes that are not in `older` and descend from none of it; all, if they fork faster than that."""
    if not older.intersection(row.key for row in processes()):
        kill_all()
        return
    deadline = time.monotonic() + _CONVERGE_S
    stopped: set[Key] = set()
    while (keys := {row.key for row in new_ones(older)}) - stopped:
        _signal_all(keys, signal.SIGSTOP)  # one that is stopped forks no more
        stopped |= keys
        if time.monotonic() > deadline:
            kill_all()
            return
    while keys := {row.key for row in new_ones(older)}:
        _signal_all(keys, signal.SIGKILL)
        reap()
        if time.monotonic() > deadline + _CONVERGE_S:
            kill_all()
            return


def kill_all() -> None:
    """Kill all processes but the first: one signal reaches all, and a process that has it cannot fork."""
    deadline = time.monotonic() + _CONVERGE_S
    while processes() and time.monotonic() < deadline:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        reap()
        time.sleep(0.001)
    reap()


def _signal_all(keys: set[Key], number: signal.Signals) -> None:
    for pid, _ in keys:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def reap() -> None:
    """Wait for all that have ended, orphans among them; note how those in `WATCHED` have."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in WATCHED:
                WATCHED[pid] = os.waitstatus_to_exitcode(status)


def environment(env: Mapping[str, str], user: UserIds) -> dict[str, str]:
    """Return the environment variables of a program."""
    return {"PATH": PATH, "HOME": user.home, **env}


def spawn(
    argv: Sequence[str], env: Mapping[str, str], workdir: str, user: UserIds, files: Mapping[int, int], rules: Rules
) -> int:
    """Start a program, and watch it; return its id. Raises: BlockingIOError: no further process may be made.

    Args:
        argv: its words; the name is looked up in the PATH of `env`.
        env: all its environment variables.
        workdir: where it starts.
        user: who runs it.
        files: its descriptors -> ours; it has no others.
        rules: what it may not do.
    """
    pid = os.fork()
    if pid == 0:
        _become(argv, env, workdir, user, files, rules)
    WATCHED[pid] = None
    return pid


def _become(
    argv: Sequence[str], env: Mapping[str, str], workdir: str, user: UserIds, files: Mapping[int, int], rules: Rules
) -> NoReturn:
    what = argv[0]
    try:
        os.setsid()
        for number in range(1, signal.NSIG):
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        high = {number: fcntl.fcntl(ours, fcntl.F_DUPFD, 300) for number, ours in files.items()}
        for number, ours in high.items():
            os.dup2(ours, number)
        for number in range(1024):
            if number not in files:
                with suppress(OSError):
                    os.close(number)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as score:
            score.write("300")  # memory that runs out ends programs before the first process
        resource.setrlimit(resource.RLIMIT_FSIZE, (rules.file_bytes, rules.file_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        filter_calls(rules.calls)
        os.setgroups(user.groups)
        os.setgid(user.gid)
        os.setuid(user.uid)
        os.umask(0o022)
        what = workdir
        os.chdir(workdir)
        what = argv[0]
        os.execvpe(argv[0], list(argv), env)
    except OSError as error:
        with suppress(OSError):
            os.write(2, f"{what}: {error.strerror}\n".encode(errors="replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    finally:
        os._exit(126)


def is_program(name: str, path: str) -> bool:
    """Return whether a program of this name is in a PATH."""
    for folder in path.split(":"):
        with suppress(OSError):
            status = os.stat(os.path.join(folder, name))
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o111:
                return True
    return False
