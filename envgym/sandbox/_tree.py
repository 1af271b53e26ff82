"""What a process and all its descendants use, read from /proc. Standard library only: it also runs inside sandboxes."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_MAX_LOOKED_AT = 2000
_CHUNK = 65536
_SHARED = b"/dev/zero (deleted)"
"""How the kernel names anonymous memory that can be shared; no file of a sandbox has this path."""
_MAPPING = re.compile(rb"^([0-9a-f]+-[0-9a-f]+) \S{3}s ([0-9a-f]+) \S+ (\d+) +" + re.escape(_SHARED), re.MULTILINE)
_IN_USE = re.compile(rb"^(TCP6?|UDP6?): inuse (\d+)", re.MULTILINE)
"""A line of /proc/PID/net/sockstat: a table of sockets, which takes long to read, and how many are in it."""
_SIZE = re.compile(rb"^(Vm\w+):\s+(\d+) kB$", re.MULTILINE)
_HEAD = re.compile(rb"[0-9a-f]+-[0-9a-f]+ ")


class Usage(NamedTuple):
    """Totals over a tree of processes."""

    cpu_s: float
    memory: int
    """Bytes."""
    processes: int
    """Threads count too."""


def descendants(pid: int) -> list[int]:
    """Return `pid` and the processes below it; those that end meanwhile may be missing."""
    pids: list[int] = []
    queue = [pid]
    while queue and len(pids) < _MAX_LOOKED_AT:
        current = queue.pop()
        pids.append(current)
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{current}/task"):
                with suppress(OSError):
                    queue.extend(map(int, _read(f"/proc/{current}/task/{thread}/children").split()))
    return pids


def _read(path: str) -> bytes:
    """Return a file of /proc; without Python's buffers, which take longer than the system. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, _CHUNK)
        while more := os.read(descriptor, _CHUNK):
            content += more
        return content
    finally:
        os.close(descriptor)


class UsageMeter:
    """Measures a tree of processes again and again, and counts also what cannot be seen at one time only.

    Memory: resident and swapped pages, page tables, all of shared memory (also where no page table maps it any more),
    and what sockets can hold. Processor time: also of children that nobody waited for.
    """

    def __init__(self, pid: int, *, has_own_network: bool) -> None:
        """Prepare to measure `pid` and its descendants.

        Args:
            pid: The first process.
            has_own_network: Whether every socket in its network namespace is one of theirs.
        """
        self._pid = pid
        self._has_own_network = has_own_network
        self._records: dict[int, _ProcessRecord] = {}
        self._ticks, self._waited_ticks, self._brief_ticks = 0, 0, 0.0
        self._measured_s = time.monotonic()
        self._extents: dict[bytes, int] = {}

    def measure(self, max_memory: int) -> Usage:
        """Return the current usage; exact about shared pages only if the upper bound is over `max_memory` bytes."""
        records = _records(self._pid)
        self._count_cpu(records)
        tasks = [record.task for record in records.values()]
        hidden = self._shared_memory(tasks) + self._socket_memory(list(records))
        hidden += sum(record.page_tables for record in records.values())
        memory = hidden + sum(record.memory for record in records.values())
        if memory > max_memory:
            memory = hidden + sum(map(_proportional_memory, tasks))
        ticks = self._ticks + max(0.0, self._brief_ticks - self._waited_ticks)
        return Usage(ticks * _TICK_S, memory, sum(record.threads for record in records.values()))

    def _count_cpu(self, records: dict[int, "_ProcessRecord"]) -> None:
        """Add the processor time since the last measurement.

        A process that has ended is in its parent's total of waited-for children, less what was counted while it lived.
        Processes that nobody waits for may begin and end between two measurements. So one that was running at a single
        measurement stands for the time from the one before; that sum counts as far as it is over the total of
        waited-for children, which tells the truth where somebody waits.
        """
        now, before = time.monotonic(), self._records
        own = waited = 0
        for pid, record in records.items():
            last = before.get(pid)
            own += max(0, record.own_ticks - (last.own_ticks if last else 0))
            waited += max(0, record.waited_ticks - (last.waited_ticks if last else 0))
            if last is None and record.is_running and before:
                records[pid] = record._replace(brief_ticks=_running_share(pid) * (now - self._measured_s) / _TICK_S)
        ended = [record for pid, record in before.items() if pid not in records]
        counted = sum(record.own_ticks + record.waited_ticks for record in ended)
        self._ticks += own + max(0, waited - counted)
        self._waited_ticks += waited
        self._brief_ticks += sum(max(0.0, record.brief_ticks - record.own_ticks) for record in ended)
        self._records, self._measured_s = records, now

    def _shared_memory(self, tasks: Sequence[str]) -> int:
        """Return the bytes of anonymous memory that can be shared, each piece once."""
        pieces: dict[bytes, int] = {}
        for task in tasks:
            with suppress(OSError):
                for place, offset, inode in _MAPPING.findall(_read(f"{task}/maps")):
                    first, last = (int(address, 16) for address in place.split(b"-"))
                    size = int(offset, 16) + last - first
                    with suppress(OSError):  # only a privileged process may look, and then knows what is allocated
                        size = os.stat(f"{task}/map_files/{place.decode()}").st_blocks * 512
                    pieces[inode] = max(size, pieces.get(inode, 0), self._extents.get(inode, 0))
        self._extents = pieces
        return sum(pieces.values())

    def _socket_memory(self, pids: Sequence[int]) -> int:
        """Return the bytes that sockets hold, as far as that is known, else what they can hold."""
        if not self._has_own_network:
            return len({inode for pid in pids for inode in sockets_of(pid)}) * _socket_buffer()
        try:
            counts = _read(f"/proc/{self._pid}/net/sockstat")
            num_sockets = int(counts.split(maxsplit=3)[2])  # also those on their way, and closed unread ones
            if num_sockets == 0:
                return 0
            counts += _read(f"/proc/{self._pid}/net/sockstat6")
            used = [name.decode().lower() for name, number in _IN_USE.findall(counts) if int(number)]
            queues = [fields[4] for name in used for fields in _rows(self._pid, name)]
            waiting = sum(int(size, 16) for queue in queues for size in queue.split(b":"))
            return num_sockets * _socket_buffer() + 2 * waiting  # a packet takes more than what it carries
        except (OSError, IndexError, ValueError):  # it has ended
            return 0


class _ProcessRecord(NamedTuple):
    own_ticks: int
    waited_ticks: int
    """Of children that it has waited for."""
    memory: int
    """Bytes, resident or swapped."""
    page_tables: int
    threads: int
    is_running: bool
    brief_ticks: float
    """What it stands for if it is seen once only."""
    task: str
    """The directory of a thread that knows its memory."""


def _records(pid: int) -> dict[int, _ProcessRecord]:
    records = {}
    for current in descendants(pid):
        with suppress(OSError, IndexError, ValueError):
            fields = _read(f"/proc/{current}/stat").rpartition(b")")[2].split()
            utime, stime, cutime, cstime = map(int, fields[11:15])
            task = f"/proc/{current}" if fields[20] != b"0" else _task_with_memory(current)
            sizes = _sizes(task)
            records[current] = _ProcessRecord(
                utime + stime,
                cutime + cstime,
                sizes.get(b"VmRSS", 0) + sizes.get(b"VmSwap", 0),
                sizes.get(b"VmPTE", 0),
                int(fields[17]),
                fields[0] == b"R",
                0.0,
                task,
            )
    return records


def _running_share(pid: int) -> float:
    """Return the share of its time that a process ran while it could, 1 where it had no competitors."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/schedstat", "rb") as schedstat:
        running, waiting, _ = map(int, schedstat.read().split())
        return running / max(1, running + waiting)
    return 0.0


def _sizes(task: str) -> dict[bytes, int]:
    """Return the sizes in a task's status, in bytes."""
    with suppress(OSError):
        return {name: int(size) * 1024 for name, size in _SIZE.findall(_read(f"{task}/status"))}
    return {}


def _task_with_memory(pid: int) -> str:
    """Return the directory of a thread that knows the memory of its process, where the first one has ended."""
    with suppress(OSError, IndexError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                if _read(f"/proc/{pid}/task/{thread}/stat").rpartition(b")")[2].split()[0] not in b"ZX":
                    return f"/proc/{pid}/task/{thread}"
    return f"/proc/{pid}"


def _proportional_memory(task: str) -> int:
    """Return a process' resident and swapped bytes, shared pages divided among those who share them.

    Anonymous shared memory is left out: `UsageMeter` counts all of it.
    """
    total, is_left_out = 0, False
    with suppress(OSError), open(f"{task}/smaps", "rb") as details:
        for line in details:
            if line.startswith((b"Pss:", b"SwapPss:")):
                total += 0 if is_left_out else int(line.split()[1]) * 1024
            elif _HEAD.match(line):
                is_left_out = line.rstrip().endswith(_SHARED)
    return total


def _rows(pid: int, name: str) -> Iterator[list[bytes]]:
    with suppress(OSError), open(f"/proc/{pid}/net/{name}", "rb") as table:
        next(table, None)
        yield from (line.split() for line in table)


def sockets_of(pid: int) -> Iterator[str]:
    """Yield the sockets that a process holds, as /proc names them."""
    with suppress(OSError):  # it has ended
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it has closed this one
                link = os.readlink(f"/proc/{pid}/fd/{number}")
                if link.startswith("socket:"):
                    yield link


def _socket_buffer() -> int:
    """Return the largest size of a socket's send buffer; the filter of system calls lets no program raise it."""
    with suppress(OSError, ValueError), open("/proc/sys/net/core/wmem_default", "rb") as size:
        return int(size.read())
    return 212_992
