"""What a machine is asked and what it answers: its specification, finished commands, and the protocols of a back-end.

A machine is a container or virtual machine that lives for many commands and keeps its files between them. What runs in
it is hostile: it may be root there, and nothing that it does may reach the host or forge a result of another command.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from envgym.core.json_types import is_well_formed
from envgym.errors import InvalidInput
from envgym.sandbox.records import MIB, RunEnding

DEFAULT_OUTPUT = 64 * 1024
"""Bytes of a command's output that are kept."""
MAX_GET = 64 * MIB
"""Bytes of files that one `get` returns, unless it asks for another limit."""
ROOT = "root"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """A machine to start."""

    image: str
    """Reference of an image that the back-end has, such as the result of `build`."""
    workdir: str | None = None
    """Absolute path of the directory that commands start in; None: the image's. It is made if it is missing."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment variables of commands, in addition to those of the image."""
    user: str | None = None
    """Who runs commands: a name, a number, or `user:group`; None: the image's user."""
    cpus: float = 1.0
    """Processors, in units of one processor's time; at most as many as there are."""
    memory: int = 2048 * MIB
    """Bytes of all processes and of files in memory, without swap."""
    disk: int = 10240 * MIB
    """Bytes that the machine may write in addition to its image."""
    processes: int = 512
    """Processes and threads at the same time; more are refused."""
    network: bool = False
    """Whether the machine reaches a network; without it, only its own loopback."""

    def __post_init__(self) -> None:
        """Check the fields. Raises: InvalidInput."""
        if not self.image or self.image.startswith("-"):
            raise InvalidInput.of("image", "be a name", self.image, where="MachineSpec", do="name an image")
        for item in fields(self):
            value = getattr(self, item.name)
            is_number = item.name in ("cpus", "memory", "disk", "processes")
            if is_number and not 0 < value < float("inf"):
                raise InvalidInput.of(item.name, "be positive and finite", value, where="MachineSpec", do="raise it")
        check_directory(self.workdir, where="MachineSpec")
        check_env(self.env, where="MachineSpec")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A command that has ended."""

    exit_code: int
    """128 + the signal's number if a signal ended the command; -1 if a limit did."""
    output: bytes
    """Standard output and standard error in the order in which they were written. If they are longer than the limit:
    their first and last bytes, `dropped` bytes are missing between the two halves."""
    ending: RunEnding
    seconds: float
    """Wall time."""
    dropped: int = 0
    """Bytes of output that are left out."""
    is_shell_lost: bool = False
    """Whether the shell has ended, with this command or before it, so that its variables and directory are lost; the
    command after that runs in a new one."""

    is_machine_lost: bool = False
    """Whether the command has ended the machine itself, by its memory or because it could not be killed; every later
    request then fails."""

    @property
    def is_success(self) -> bool:
        return self.ending is RunEnding.EXITED and self.exit_code == 0

    @property
    def text(self) -> str:
        """The output as text, with a note in place of what was left out."""
        if not self.dropped:
            return self.output.decode(errors="replace")
        middle = (len(self.output) + 1) // 2
        parts = (part.decode(errors="replace") for part in (self.output[:middle], self.output[middle:]))
        return f"\n[{self.dropped} bytes left out]\n".join(parts)


class Machine(Protocol):
    """A machine that runs. Threads may share it; one request is carried out at a time.

    A machine that is lost raises `ToolInfraFailure` in every method except `close`.
    """

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float,
        output: int = DEFAULT_OUTPUT,
        workdir: str | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
        user: str | None = None,
        stdin: bytes = b"",
        shell: str | None = None,
    ) -> CommandResult:
        """Run a command and wait until it ends; processes that it leaves in the background continue.

        A command that is stopped by a limit is killed with all processes that it has started.

        Args:
            command: a text for `bash -c`, or for `sh -c` if the image has no bash; or the words of a program.
            timeout_s: wall time, in seconds.
            output: bytes of output to keep.
            workdir: absolute path; None: the machine's.
            env: environment variables, in addition to those of the machine.
            user: as in `MachineSpec`; None: the machine's.
            stdin: standard input.
            shell: name of a persistent shell that runs the command, which must be a text; it is started by the first
                command of that name, with its `workdir`, `env` and `user`. `MachineShell` uses it.

        Raises: InvalidInput: an argument breaks a rule. ToolInfraFailure: the machine does not work.
        """
        ...

    def put(
        self,
        files: Mapping[str, bytes],
        directory: str,
        *,
        mode: int = 0o644,
        owner: str = ROOT,
        is_fresh: bool = False,
    ) -> None:
        """Write files below a directory with the rights of root, whatever programs of the image have become.

        Args:
            files: relative path -> content. Directories are made if they are missing.
            directory: absolute path. No part of it, and none below it, is followed if it is a link.
            mode: permissions of the files. Directories that are made get them, too, with `x` where they have `r`; 0755
                if there are no files.
            owner: as `MachineSpec.user`, of the files, and of `directory` and those below it if they are made. Those
                above are root's, with 0755.
            is_fresh: whether what is at `directory` is removed first, a link included.

        Raises: InvalidInput: a path leads outside. ToolError: the machine's state does not allow it, such as a link in
            the path, or a full disk. ToolInfraFailure: the machine does not work.
        """
        ...

    def put_folder(self, path: Path, directory: str, *, owner: str = ROOT, is_fresh: bool = False) -> None:
        """Write a folder's regular files below a directory, as `put`; executable files stay executable.

        Raises: InvalidInput: `path` is no folder, or has links. As `put`.
        """
        ...

    def get(self, path: str, *, max_bytes: int = MAX_GET) -> dict[str, bytes]:
        """Return the regular files at an absolute path: relative path -> content; one file: its name -> content.

        Links are not followed, those in `path` included: what is behind them is absent, as is all that is no regular
        file.

        Raises: InvalidInput: the path is not absolute. ToolError: more than `max_bytes`, or more files or longer
            names than are allowed. ToolInfraFailure: the machine does not work.
        """
        ...

    def end_processes(self) -> None:
        """Kill every process of the machine, shells included; files stay. Raises: ToolInfraFailure."""
        ...

    def fork(self) -> "Machine":
        """Start another machine with the same files and settings; processes are not copied.

        Raises: ForkUnsupported: a process runs that the copy would lack, or the back-end cannot fork.
            ToolInfraFailure: the machine does not work.
        """
        ...

    def close(self) -> None:
        """Remove the machine and everything that belongs to it; may be called twice."""
        ...


class MachineBackend(Protocol):
    """A source of machines; may be used by many threads."""

    def build(
        self,
        context: Path,
        *,
        dockerfile: str = "Dockerfile",
        bases: Mapping[str, str] = MappingProxyType({}),
        network: bool = False,
        timeout_s: float = 600.0,
    ) -> str:
        """Return the reference of the image that a Dockerfile describes; an unchanged context is built once.

        Args:
            context: folder that the Dockerfile reads.
            dockerfile: path of the Dockerfile in the context.
            bases: image in a `FROM` -> image to use in its place.
            network: whether commands of the Dockerfile reach a network.
            timeout_s: wall time of the build, in seconds.

        Raises: InvalidInput: there is no such Dockerfile, or it cannot be built. ToolInfraFailure: the back-end does
            not work, or the build takes too long.
        """
        ...

    def start(self, spec: MachineSpec) -> Machine:
        """Start a machine. Raises: InvalidInput: there is no such image. ToolInfraFailure: it does not start."""
        ...

    def why_unavailable(self) -> str | None:
        """Return in one sentence why no machine can be started here, None if one can."""
        ...


def check_directory(path: str | None, *, where: str) -> None:
    """Check a path of a machine. Raises: InvalidInput: it is not absolute, or leads upwards."""
    if path is None:
        return
    is_good = path.startswith("/") and ".." not in path.split("/") and "\0" not in path and is_well_formed(path)
    InvalidInput.unless(is_good, "path", "be absolute, without ..", path, where=where, do="write it as in /app/data")


def check_env(env: Mapping[str, str], *, where: str) -> None:
    """Check environment variables. Raises: InvalidInput: a name or value that no process can have."""
    for name, value in env.items():
        is_good = name and "=" not in name and "\0" not in name + value and is_well_formed(name + value)
        do = "use names without = and values without NUL"
        InvalidInput.unless(is_good, "environment variable", "have a name and a text", name, where=where, do=do)
