"""What a sandbox is asked and what it answers: limits, completed runs, and the protocol of a back-end."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import accumulate
from types import MappingProxyType
from typing import Protocol

from envgym.core.json_types import is_well_formed
from envgym.errors import InvalidInput

MIB = 1024**2
MAX_FILES = 200
"""Files handed to one run."""
MAX_NAME, MAX_PATH = 255, 4000
"""Bytes of a file's name, and of its path."""


class RunEnding(StrEnum):
    """Why a program stopped."""

    EXITED = "EXITED"
    """By itself; `exit_code` says how."""
    SIGNALED = "SIGNALED"
    """By a signal, its own or another program's in the sandbox."""
    WALL_TIME = "WALL_TIME"
    CPU_TIME = "CPU_TIME"
    MEMORY = "MEMORY"
    PROCESSES = "PROCESSES"
    OUTPUT = "OUTPUT"
    DISK = "DISK"
    """Too many files; what does not fit by its size is refused to the program."""

    @property
    def is_limit(self) -> bool:
        """True where a limit stopped the program."""
        return self not in (RunEnding.EXITED, RunEnding.SIGNALED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use; all its processes together where nothing else is said."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory: int = 512 * MIB
    """Bytes. A process that asks for more by itself is refused; together they are stopped."""
    processes: int = 64
    """Processes and threads. More are refused, and stopped where the kernel does not refuse."""
    open_files: int = 256
    """Per process."""
    output: int = MIB
    """Bytes of standard output and standard error."""
    disk: int = 64 * MIB
    """Bytes of files; they lie in memory."""

    def __post_init__(self) -> None:
        """Refuse what limits nothing. Raises: InvalidInput."""
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0 < value < float("inf"):
                raise InvalidInput.of(item.name, "be positive and finite", value, where="Limits", do="raise it")


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A run that is over; nothing of it is left."""

    stdout: bytes
    """At most `Limits.output` bytes, as the program wrote them: it need not be text."""
    stderr: bytes
    exit_code: int
    """128 + the signal's number where one ended the program; -1 where a limit did."""
    ending: RunEnding
    seconds: float
    """Wall time."""
    peak_memory: int
    """Bytes; of the largest process, or of all together where they were looked at (every 20 ms)."""

    @property
    def is_success(self) -> bool:
        return self.ending is RunEnding.EXITED and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run."""

    argv: Sequence[str]
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    """Relative path -> content, laid into the working directory first."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run. Raises: InvalidInput: no program, no text, a path outside, too many files."""
        is_text = all("\0" not in word and is_well_formed(word) for word in [*self.argv, *self.files])
        if not self.argv or not self.argv[0] or not is_text:
            do = "name a program first, and drop NUL characters and lone surrogates"
            raise InvalidInput.of("argv", "be the words of a command", self.argv, where="sandbox", do=do)
        directories = {parent for path in self.files for parent in accumulate(path.split("/")[:-1], "{}/{}".format)}
        for path in self.files:
            if path.startswith("/") or {"..", ".", ""} & set(path.split("/")):
                do = "name it as in src/main.py"
                raise InvalidInput.of("file", "lie in the working directory", path, where="sandbox", do=do)
            is_long = any(len(part.encode()) > MAX_NAME for part in path.split("/"))
            if is_long or len(path.encode()) > MAX_PATH or path in directories:
                must = f"have a name of at most {MAX_NAME} bytes that is not a directory"
                raise InvalidInput.of("file", must, path, where="sandbox", do="rename it")
        if len(self.files) > MAX_FILES:
            do = "put them into one archive"
            raise InvalidInput.of("number of files", f"be at most {MAX_FILES}", len(self.files), where="sandbox", do=do)


class Sandbox(Protocol):
    """A place to run hostile programs; may be used by many threads. A back-end may be a `SandboxBackend`."""

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        files: Mapping[str, bytes] = MappingProxyType({}),
        limits: Limits = DEFAULT_LIMITS,
    ) -> Completed:
        """Run a program in a fresh place with `files` in its working directory, and wait for it.

        Raises: InvalidInput: an argument breaks a rule. ToolInfraFailure: the sandbox does not work.
        """
        ...

    def close(self) -> None:
        """Free what the back-end holds; may be called twice, and a later run starts it again."""
        ...


class SandboxBackend(ABC):
    """A `Sandbox` that checks what it is asked for, and leaves the run to `_complete`."""

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        files: Mapping[str, bytes] = MappingProxyType({}),
        limits: Limits = DEFAULT_LIMITS,
    ) -> Completed:
        """Run a program in a fresh place, and wait for it. Raises: as `Sandbox.run`."""
        return self._complete(Program(argv=tuple(argv), stdin=stdin, files=files), limits)

    @abstractmethod
    def _complete(self, program: Program, limits: Limits) -> Completed:
        """Run a program to its end. Raises: ToolInfraFailure: the sandbox does not work."""

    def close(self) -> None:  # noqa: B027  # most hold nothing between runs
        """Free what the back-end holds."""
