"""The kernel's own limits: a cgroup (version 2) for each run, session and fork, where this process may make them.

    D                     the cgroup that this process was started in
    |-- envgym.host       this process, and those that it starts outside of sandboxes
    `-- envgym.own-XXXX   one for each process that starts sandboxes, locked as long as that one lives
        |-- 1             one for each run, session and fork
        `-- 2

A cgroup that holds processes gives its children no controllers, hence `envgym.host`. Only this process and those that
it has started are moved: where others are in D, there is no cgroup for sandboxes, and what they use is counted.
"""

import atexit
import fcntl
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from envgym.errors import ToolInfraFailure
from envgym.sandbox._processes import WrittenFiles, written_by
from envgym.sandbox._tree import Usage, descendants
from envgym.sandbox.records import MIB

_HOST, _OWN = "envgym.host", "envgym.own-"
_CONTROLLERS = ("memory", "pids")
_KERNEL = 64 * MIB
"""What the kernel may take for files, processes and pipes of one sandbox, besides what counts as its memory."""
_INODE = 1024
"""Bytes that the kernel has at most for a file in memory, besides its pages and its name."""
_DYING_S = 5.0


class NoCgroup(Exception):
    """There is no cgroup for sandboxes; the reason is for users."""


# ---- reading ---------------------------------------------------------------------------------------------------------


def own_cgroup(cgroup: str, mountinfo: str) -> Path:
    """Return the directory of a process' cgroup from its files in /proc. Raises: NoCgroup: it has none that is seen."""
    path = next((line.removeprefix("0::") for line in cgroup.splitlines() if line.startswith("0::/")), "/..")
    for line in mountinfo.splitlines():
        fields, _, system = line.partition(" - ")
        if system.startswith("cgroup2 "):
            root, place = fields.split()[3:5]
            if f"{path}/".startswith(f"{root.rstrip('/')}/") and ".." not in path.split("/"):
                return Path(place, path[len(root) :].lstrip("/"))
    raise NoCgroup("no cgroup (version 2) of this process is mounted")


def parse_counters(text: str) -> dict[str, int]:
    """Return the numbers in a file like memory.events: one name and one number a line."""
    return {name: int(number) for name, number in (line.split() for line in text.splitlines())}


def memory_of(stat: Mapping[str, int], files: WrittenFiles) -> int:
    """Return the bytes that count as memory, from memory.stat: no cache, and no `files`, which have their own limit.

    What the kernel has for the program counts too: stacks, page tables, pipes, sockets.
    """
    parts = stat["kernel_stack"] + stat["pagetables"] + stat["slab"]  # all that is told before Linux 5.18
    kernel = stat.get("kernel", parts) - stat["slab_reclaimable"] - files.number * _INODE
    return stat["anon"] + max(0, stat["shmem"] - files.size) + stat["sock"] + max(0, kernel)


# ---- one cgroup ------------------------------------------------------------------------------------------------------


class Cgroup:
    """Holds the processes of one run, session or fork, and measures what they use."""

    def __init__(self, maker: "CgroupMaker", path: Path, memory: int, processes: int) -> None:
        """Make one that holds `memory` bytes and `processes`, threads too. Raises: OSError."""
        path.mkdir()
        self._maker, self._path, self._pid = maker, path, 0
        self._files = WrittenFiles(0, 0)
        self._was_out_of_memory = False
        for name, value in ("memory.max", memory), ("memory.oom.group", 1), ("pids.max", processes):
            (path / name).write_text(str(value))
        with suppress(FileNotFoundError):  # the kernel has no swap
            (path / "memory.swap.max").write_text("0")

    def add(self, pid: int) -> None:
        """Take a process in, and what it starts from now on; one that has ended is left out.

        Raises: ToolInfraFailure: it cannot be moved.
        """
        try:
            (self._path / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            return
        except OSError as error:
            raise _broken("take processes", error) from None
        self._pid, self._files = pid, written_by(pid)  # what lies there already was counted elsewhere

    def measure(self, max_memory: int) -> Usage:
        """Return the current usage, which is exact whatever `max_memory` is. Raises: OSError."""
        files = WrittenFiles(
            *(max(0, now - then) for now, then in zip(written_by(self._pid), self._files, strict=True))
        )
        processes = int((self._path / "pids.current").read_text())
        return Usage(self.cpu_s(), memory_of(self._counters("memory.stat"), files), processes)

    def cpu_s(self) -> float:
        """Return the processor time of all processes that were ever in it. Raises: OSError."""
        return self._counters("cpu.stat")["usage_usec"] / 1e6

    def was_out_of_memory(self) -> bool:
        """Tell whether the kernel has ended it at its own limit; not so where the machine had no memory left."""
        with suppress(OSError):  # it is removed
            events = self._counters("memory.events")
            self._was_out_of_memory = min(events["oom"], events["oom_kill"]) > 0
        return self._was_out_of_memory

    def kill(self) -> None:
        _kill(self._path)

    def close(self) -> None:
        """End all processes in it, and remove it."""
        self.was_out_of_memory()
        if self._maker.holds(self._path):
            self.kill()
            self.release()

    def release(self) -> None:
        """Remove it as soon as no process is in it any more: now, or when another one is removed or made."""
        if self._maker.holds(self._path):
            self._maker.remove(self._path)

    def _counters(self, name: str) -> dict[str, int]:
        return parse_counters((self._path / name).read_text())


# ---- all of this process ---------------------------------------------------------------------------------------------


class CgroupMaker:
    """Makes and removes the cgroups of this process' sandboxes; used by all threads."""

    def __init__(self) -> None:
        """Prepare; what is needed is made when it is first asked for."""
        self._lock = threading.Lock()
        self._own: Path | None = None
        self._why: str | None = None
        self._held = -1
        self._left: set[Path] = set()
        self._numbers = itertools.count(1)
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def why_none(self) -> str | None:
        """Return why there are no cgroups for sandboxes, None where there are."""
        with self._lock:
            if self._own is None and self._why is None:
                try:
                    self._start(_divided(own_cgroup(_text("/proc/self/cgroup"), _text("/proc/self/mountinfo"))))
                except (NoCgroup, OSError) as error:
                    self._why = str(error)
            return self._why

    def make(self, memory: int, processes: int) -> Cgroup | None:
        """Make a cgroup, with its limits; None where there are none. Raises: ToolInfraFailure: no more can be made."""
        if self.why_none() is not None or self._own is None:
            return None
        self._remove_left()
        try:
            return Cgroup(self, self._own / str(next(self._numbers)), memory + _KERNEL, processes)
        except OSError as error:
            raise _broken("hold others", error) from None

    @contextmanager
    def making(self, memory: int, processes: int) -> Iterator[Cgroup | None]:
        """Give a cgroup, and end all that is in it afterwards. Raises: as `make`."""
        cgroup = self.make(memory, processes)
        try:
            yield cgroup
        finally:
            if cgroup is not None:
                cgroup.close()

    def holds(self, path: Path) -> bool:
        """Tell whether this process has made a cgroup, not one that it was forked from."""
        return path.parent == self._own

    def remove(self, path: Path) -> None:
        """Remove a cgroup, later if processes are still in it."""
        with self._lock:
            self._left.add(path)
        self._remove_left()

    def _remove_left(self) -> None:
        with self._lock:
            self._left = {path for path in self._left if not _is_removed(path)}

    def close(self) -> None:
        """End all that is in these cgroups, and remove them; later use makes them anew."""
        with self._lock:
            if self._own is not None:
                _remove_all(self._own)
                os.close(self._held)
                self._own = None

    def _start(self, parent: Path) -> None:
        """Make the cgroup that holds the others, and remove those of processes that have ended. Raises: OSError."""
        guard = _locked(parent, fcntl.LOCK_EX)
        try:
            for old in parent.glob(f"{_OWN}*"):
                with suppress(OSError):  # its process lives, or has just removed it
                    os.close(_locked(old, fcntl.LOCK_EX | fcntl.LOCK_NB))
                    _remove_all(old)
            own = Path(tempfile.mkdtemp(prefix=_OWN, dir=parent))
            self._held = _locked(own, fcntl.LOCK_EX)
        finally:
            os.close(guard)
        _give_controllers(own)
        self._own = own

    def _forget(self) -> None:
        """Start afresh in a forked child: the cgroups are the parent's."""
        self._lock = threading.Lock()
        if self._own is not None:
            os.close(self._held)
        self._own, self._left = None, set()


@cache
def shared_cgroups() -> CgroupMaker:
    return CgroupMaker()


def _divided(own: Path) -> Path:
    """Return the cgroup above those of all sandboxes, after this process has left it. Raises: NoCgroup, OSError."""
    parent = own.parent if own.name == _HOST else own
    missing = sorted({*_CONTROLLERS} - {*_text(parent / "cgroup.controllers").split()})
    if missing:
        raise NoCgroup(f"{parent} lacks the controllers {' and '.join(missing)}")
    if not os.access(parent, os.W_OK):
        raise NoCgroup(f"{parent} cannot be written by this account")
    is_first = not (parent / "cgroup.type").exists()  # the machine's own may hold processes and give controllers
    inside = [] if is_first else [int(pid) for pid in _text(parent / "cgroup.procs").split()]
    others = {*inside} - {*descendants(os.getpid())}
    if others:
        raise NoCgroup(f"{parent} holds processes that this one has not started")
    leaf = parent / _HOST
    try:
        for pid in inside:
            leaf.mkdir(exist_ok=True)
            (leaf / "cgroup.procs").write_text(str(pid))
        _give_controllers(parent)
    except OSError:
        for pid in inside:
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(str(pid))
        _is_removed(leaf)
        raise
    return parent


def _give_controllers(path: Path) -> None:
    (path / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))


def _remove_all(path: Path) -> None:
    deadline = time.monotonic() + _DYING_S
    _kill(path)
    while not _is_removed(path):
        for child in filter(Path.is_dir, path.iterdir()):
            _is_removed(child)
        if time.monotonic() > deadline:
            return  # the next process that starts sandboxes tries again
        time.sleep(0.001)


def _is_removed(path: Path) -> bool:
    """Remove a cgroup; tell whether it is gone."""
    try:
        path.rmdir()
    except OSError:
        return not path.exists()
    return True


def _kill(path: Path) -> None:
    with suppress(OSError):  # it is removed, or Linux is older than 5.14: all end with their first process
        (path / "cgroup.kill").write_text("1")


def _locked(directory: Path, how: int) -> int:
    """Return a descriptor that holds a lock until it is closed. Raises: OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _broken(what: str, error: OSError) -> ToolInfraFailure:
    do = "check whether another program removed or filled it"
    return ToolInfraFailure.of("cgroup", f"be able to {what}", str(error), where="sandbox", do=do)


def _text(path: str | Path) -> str:
    return Path(path).read_text()
