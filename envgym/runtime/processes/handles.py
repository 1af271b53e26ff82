"""A process of a run while it runs, and who starts one: this machine here, a cluster in `envgym.runtime.ray`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final, NamedTuple, Protocol

PARENT_VARIABLE: Final = "ENVGYM_PARENT"
"""Id of the process with which this one shall end."""
KEPT_BYTES: Final = 1 << 16
"""Longest line of a process's output."""
_OF_TORCHRUN: Final = {"RANK", "WORLD_SIZE", "OMP_NUM_THREADS"}


class ProcessHandle(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its id on its machine."""
        ...

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None: it runs, or its machine is lost."""
        ...

    @property
    def memory_mib(self) -> float:
        """Its resident memory; 0 where that is not known."""
        ...

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of its output until it ends; to be called once."""
        ...

    def wait(self) -> None:
        """Block until it has ended, or its machine is lost."""
        ...

    def describe_ending(self) -> str:
        """Return in words how it ended."""
        ...

    def send_signal(self, number: int) -> None:
        """Send a signal to it and to those that it started, which are in its group; it may be gone."""
        ...


class ProcessStarter(Protocol):
    """Starts processes somewhere."""

    def start(self, role: str, command: Sequence[str], environment: Mapping[str, str]) -> ProcessHandle:
        """Start a process.

        Args:
            role: its name.
            command: what follows `python -m envgym`, or a whole command that begins with an absolute path.
            environment: variables that it has beside those of where it runs.
        """
        ...


def words_of(command: Sequence[str]) -> list[str]:
    """Return the whole command: one of envgym, unless it begins with an absolute path.

    With `-P` the working directory, which may be a run directory that somebody sent, is not searched for modules.
    """
    return [*command] if command and os.path.isabs(command[0]) else [sys.executable, "-P", "-m", "envgym", *command]


def import_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a child finds the modules of this process, and none in its working directory.

    An empty or relative entry of PYTHONPATH would name the working directory, or a folder in it. The folder from which
    this process imported envgym is added only if the child would not find it otherwise.
    """
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    own = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join([*paths, *([] if _is_installed() or is_in(paths, "envgym") else [own])])
    return {"PYTHONPATH": path} if path or "PYTHONPATH" in environment else {}


def is_in(folders: Sequence[str], name: str) -> bool:
    """Return whether some folders hold a package or module of a name."""
    return PathFinder.find_spec(name, list(folders)) is not None


def _is_installed() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    try:
        distribution("envgym")
    except PackageNotFoundError:
        return False
    return True


class ProcessMemory(NamedTuple):
    """The memory of a process, in bytes; 0 where it is not known."""

    virtual: int = 0
    """Of its address space."""
    resident: int = 0
    """In physical memory."""


def read_memory(pid: int) -> ProcessMemory:
    """Return the memory of a process of this machine."""
    try:
        virtual, resident = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[:2]
        page = os.sysconf("SC_PAGE_SIZE")
        return ProcessMemory(int(virtual) * page, int(resident) * page)
    except (OSError, ValueError):
        return ProcessMemory()


def kill_marked(name: str, value: str) -> None:
    """Kill the processes of this user that were started with an environment variable of this value.

    Whatever group or session they are in; not this process, and on Linux only.
    """
    mark, own = os.fsencode(f"{name}={value}"), os.getpid()
    killed = {own}
    while marked := {pid for pid in _process_ids() - killed if mark in _read_environment(pid)}:
        for pid in marked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= marked  # the next look finds what they started meanwhile


def _process_ids() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdecimal()}
    except OSError:
        return set()


def _read_environment(pid: int) -> list[bytes]:
    """Return the variables with which a process was started; none where it is over, or of another user."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def describe_code(code: int) -> str:
    """Return in words how a process ended: its exit code or, below 0, the signal."""
    return f"exit code {code}" if code >= 0 else f"the signal {signal.Signals(-code).name}"


class LocalProcess:
    """A child of this process."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        """Hold a child whose output is a pipe, and which leads a group of its own."""
        self._popen, self.pid = popen, popen.pid

    @property
    def returncode(self) -> int | None:
        return self._popen.returncode

    @property
    def memory_mib(self) -> float:
        return read_memory(self.pid).resident / 2**20

    def lines(self) -> Iterator[bytes]:
        assert self._popen.stdout is not None, "its output is a pipe"
        with self._popen.stdout as output:
            while line := output.readline(KEPT_BYTES):
                yield line

    def wait(self) -> None:
        self._popen.wait()

    def describe_ending(self) -> str:
        return "" if self.returncode is None else describe_code(self.returncode)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class LocalStarter:
    """Starts children of this process."""

    def start(self, role: str, command: Sequence[str], environment: Mapping[str, str]) -> LocalProcess:
        inherited = {name: value for name, value in os.environ.items() if not _is_of_torchrun(name)}
        popen = subprocess.Popen(
            words_of(command),
            env={**inherited, **import_variables(inherited), **environment, PARENT_VARIABLE: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C of the terminal is for the one that started it, which ends them in order
        )
        return LocalProcess(popen)


def _is_of_torchrun(variable: str) -> bool:
    """Return whether an environment variable tells who this process is among those that torchrun has started."""
    return variable.startswith(("TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_", "LOCAL_")) or variable in _OF_TORCHRUN
