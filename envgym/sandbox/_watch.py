"""Follows one started program to its end: collects its output, looks at what it uses, stops it at a limit."""

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from envgym.errors import ToolInfraFailure
from envgym.sandbox._cgroup import Cgroup
from envgym.sandbox._processes import written_by
from envgym.sandbox._tree import UsageMeter
from envgym.sandbox.records import Completed, Limits, RunEnding

_LOOK_S = 0.02
_CHUNK = 65536
_DYING_S = 30.0
"""Seconds that killed processes may take to be gone."""
MAX_NUM_FILES = 50_000
"""Files in a program's private places."""

Fields = Mapping[str, Any]  # decoded JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProgram:
    pid: int
    """Its first process; when that one is killed, all are."""
    kill: Callable[[], None]
    """Kill all processes; may be called when they are gone."""
    stdout: int
    """Descriptors of this side; whoever starts a program closes them."""
    stderr: int
    is_private: bool = True
    """Whether it sees files and sockets of its own only."""
    report: int
    """Gives {"code", "cpu_s", "memory"} as JSON when all processes have ended."""
    cgroup: Cgroup | None = None
    """What all its processes are in; None: they are counted."""


def watch(started: RunningProgram, limits: Limits) -> Completed:
    """Wait for a program's end, its own or that of a limit. Raises: ToolInfraFailure: it cannot be followed."""
    begun = time.monotonic()
    streams = (started.stdout, started.stderr, started.report)
    chunks: dict[int, bytearray] = {stream: bytearray() for stream in streams}
    ending: RunEnding | None = None
    meter = started.cgroup or UsageMeter(started.pid, has_own_network=started.is_private)
    peak, deadline, look = 0, begun + limits.wall_s, begun + _LOOK_S
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            now = time.monotonic()
            if ending is None and now >= look:
                ending, memory = _find_limit(started, meter, limits)
                peak, look = max(peak, memory), time.monotonic() + _LOOK_S
            if ending is None and now >= deadline:
                ending = RunEnding.WALL_TIME
            if ending is not None:
                started.kill()
                if now > deadline + _DYING_S + limits.wall_s:
                    raise _lost("is still there after it was killed")
            for key, _ in selector.select(max(0.0, min(look, deadline) - now) if ending is None else 0.1):
                data = os.read(key.fd, _CHUNK)
                if not data:
                    selector.unregister(key.fd)
                elif len(chunks[key.fd]) <= limits.output:
                    chunks[key.fd] += data
            if ending is None and len(chunks[started.stdout]) + len(chunks[started.stderr]) > limits.output:
                ending = RunEnding.OUTPUT
    if not chunks[started.report]:
        raise _lost("ended without a report")
    report = json.loads(bytes(chunks[started.report]))
    report["memory"] = max(peak, int(report["memory"]))
    if ending is None and started.cgroup is not None and started.cgroup.was_out_of_memory():
        ending = RunEnding.MEMORY
    outputs = bytes(chunks[started.stdout]), bytes(chunks[started.stderr])
    return make_completed(report, limits, ending, *outputs, seconds=time.monotonic() - begun)


def make_completed(
    report: Fields, limits: Limits, ending: RunEnding | None, stdout: bytes, stderr: bytes, *, seconds: float
) -> Completed:
    """Return a run that is over, its output cut to its limit.

    `report` holds "code" (negative for a signal), "cpu_s" and "memory"; `ending` is None where no limit stopped it, or
    the kernel's own did.
    """
    code = int(report["code"])
    code = 128 - code if code < 0 else code
    if ending is None:
        is_cpu = report["cpu_s"] >= 0.9 * limits.cpu_s and code in (128 + signal.SIGXCPU, 128 + signal.SIGKILL)
        ending = RunEnding.CPU_TIME if is_cpu else RunEnding.SIGNALED if 128 < code < 193 else RunEnding.EXITED
    stdout = stdout[: limits.output]
    return Completed(
        stdout=stdout,
        stderr=stderr[: limits.output - len(stdout)],
        exit_code=-1 if ending.is_limit else code,
        ending=ending,
        seconds=seconds,
        peak_memory=int(report["memory"]),
    )


def _find_limit(started: RunningProgram, meter: UsageMeter | Cgroup, limits: Limits) -> tuple[RunEnding | None, int]:
    used = meter.measure(limits.memory)
    if used.memory > limits.memory:
        return RunEnding.MEMORY, used.memory
    if used.processes > limits.processes + 2:  # bwrap's own process, and one that just ends
        return RunEnding.PROCESSES, used.memory
    if used.cpu_s > limits.cpu_s:
        return RunEnding.CPU_TIME, used.memory
    has_too_many = started.is_private and written_by(started.pid).number > MAX_NUM_FILES
    return (RunEnding.DISK if has_too_many else None), used.memory


def _lost(got: str) -> ToolInfraFailure:
    return ToolInfraFailure.of("program", "be followed to its end", got, where="sandbox", do="run it again")


def close_all(*descriptors: int) -> None:
    """Close descriptors; those that are closed already do not matter."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
