"""A shell whose directory is kept between commands: a private writable copy for each, and snapshots for nothing.

The directory is an immutable value on the host. A command runs in a fresh sandbox on a writable copy of it; what it
changed comes back, what it did not is shared with all sessions that have it. So a fork copies nothing, neither process
nor file is left between commands, and nothing of a session ever lies on the host's disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Self

from envgym.errors import InvalidInput, ToolError
from envgym.sandbox._bwrap_start import limits_per_process
from envgym.sandbox._shell_tree import (
    EMPTY,
    MAX_ENTRIES,
    MAX_HEAD,
    InvalidTree,
    Tree,
    add_files,
    checked_path,
    pack_tree,
    read_result,
    size_of,
)
from envgym.sandbox.bwrap import BwrapSandbox
from envgym.sandbox.local import LocalSandbox
from envgym.sandbox.records import DEFAULT_LIMITS, MIB, Completed, Limits, RunEnding, Sandbox

MAX_COMMAND = 100_000
"""Bytes of a command."""
_OWN_S = 15.0
"""Seconds for laying files out and taking them in, beside those of the command."""
_OWN_CPU_S = 10.0
_OWN_MEMORY = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """What a command gave."""

    output: bytes
    """Standard output and error in the order they were written."""
    exit_code: int
    """128 + the signal's number where one ended the shell; -1 where a limit did."""
    ending: RunEnding
    seconds: float
    undone: str = ""
    """Why the directory is as it was before the command; empty where it was kept as the command left it."""

    @property
    def is_success(self) -> bool:
        return self.ending is RunEnding.EXITED and self.exit_code == 0


class ShellSession:
    """A directory and the commands run in it; used by one thread at a time. Can be copied and pickled."""

    def __init__(
        self,
        files: Mapping[str, bytes] = MappingProxyType({}),
        limits: Limits = DEFAULT_LIMITS,
        sandbox: Sandbox | None = None,
    ) -> None:
        """Prepare a directory with `files`.

        Args:
            files: Relative path -> content.
            limits: Of each command; `disk` holds for the directory.
            sandbox: Where commands run; bwrap unless given.

        Raises: InvalidInput: a path leads out, the files are too many or too large.
        """
        self.limits = limits
        self.sandbox = BwrapSandbox() if sandbox is None else sandbox
        self.cwd = "."
        """Where the next command starts; relative to the directory, or absolute."""
        self._tree: Tree = EMPTY
        self._is_closed = False
        try:
            self._take(add_files(EMPTY, files))
        except ToolError as refusal:
            do = "name files as in src/main.py"
            raise InvalidInput.of("files", "make a directory", str(refusal), where="shell", do=do) from None

    def run(self, command: str, limits: Limits | None = None) -> ShellResult:
        """Run a command with bash (or sh); what it leaves running is ended, its variables are not kept.

        Where wall time or output stops it, what it wrote is kept; where another limit does, the command is undone.

        Raises: ToolError: it is too long, or holds a NUL. ToolInfraFailure: the sandbox does not work.
            InvalidInput: the session is closed.
        """
        self._check_open()
        limits = self.limits if limits is None else limits
        text = command.encode(errors="replace").decode()
        if "\0" in text or len(text.encode()) > MAX_COMMAND:
            raise ToolError(f"A command has at most {MAX_COMMAND} bytes, and no NUL.")
        job: dict[str, object] = {
            "command": text,
            "cwd": self.cwd,
            "wall_s": limits.wall_s,
            "cpu_s": limits.cpu_s,
            "output": limits.output,
            "disk": self.limits.disk,
            "max_entries": MAX_ENTRIES,
            "limits": limits_per_process(limits),
            "alone": not isinstance(self.sandbox, LocalSandbox),
        }
        stdin = pack_tree(self._tree, job)
        done = self.sandbox.run(["python3", "-I", "-S", "-c", _script()], stdin, {}, _outer(limits, self.limits.disk))
        return self._taken(done, limits)

    def read(self, path: str) -> bytes:
        """Return a file's content; links are not followed. Raises: ToolError: there is no such file."""
        self._check_open()
        path = checked_path(path)
        entry = self._tree.get(path)
        if entry is None or entry.kind != "file":
            what = "There is no file" if entry is None else f"It is a {entry.kind}, not a file:"
            raise ToolError(f"{what} {path}.")
        return entry.content

    def write(self, path: str, content: bytes) -> None:
        """Write a file, with its directories. Raises: ToolError: it leads out, is no file, or too much."""
        self._check_open()
        self._take(add_files(self._tree, {path: content}))

    def files(self) -> Sequence[str]:
        """Return the paths of all files, sorted: no directories and no links."""
        return sorted(path for path, entry in self._tree.items() if entry.kind == "file")

    def fork(self) -> Self:
        """Return a session that goes on from here, on its own. Copies nothing. Raises: InvalidInput: it is closed."""
        self._check_open()
        twin = type(self)(limits=self.limits, sandbox=self.sandbox)
        twin._tree, twin.cwd = self._tree, self.cwd
        return twin

    def close(self) -> None:
        """Let go of the directory; may be called twice."""
        self._tree, self._is_closed = EMPTY, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __deepcopy__(self, memo: object) -> Self:
        return self.fork()

    def __getstate__(self) -> Mapping[str, object]:
        """Keep the directory: nothing else is alive."""
        return {**vars(self), "_tree": dict(self._tree)}

    # ---- inside ------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidInput.of("session", "be open", "a closed one", where="shell", do="start a new one")

    def _take(self, tree: Tree) -> None:
        if len(tree) > MAX_ENTRIES:
            raise ToolError(f"The directory holds at most {MAX_ENTRIES} files.")
        if size_of(tree) > self.limits.disk:
            raise ToolError(f"The directory holds at most {self.limits.disk} bytes.")
        self._tree = tree

    def _taken(self, done: Completed, limits: Limits) -> ShellResult:
        """Take what a sandbox gave in; where it gave nothing that can be read, nothing has happened."""
        ending = done.ending
        if ending is RunEnding.EXITED:
            try:
                result = read_result(done.stdout, self._tree, self.limits.disk)
                ending = RunEnding(result.ending)
            except (InvalidTree, ValueError):
                return _undone_result(done, "the command broke its own shell")
            if result.reason is not None:
                return replace(
                    _undone_result(done, result.reason), output=result.output, ending=RunEnding.DISK, exit_code=-1
                )
            self._tree, self.cwd = result.tree, result.cwd
            code = -1 if ending.is_limit else result.code
            return ShellResult(output=result.output, exit_code=code, ending=ending, seconds=result.seconds)
        return _undone_result(done, "all of it was stopped" if ending.is_limit else "the command ended its own shell")


def _undone_result(done: Completed, why: str) -> ShellResult:
    ending = RunEnding.SIGNALED if done.ending is RunEnding.EXITED else done.ending
    return ShellResult(output=b"", exit_code=done.exit_code, ending=ending, seconds=done.seconds, undone=why)


def _outer(limits: Limits, disk: int) -> Limits:
    """Return the limits of a sandbox that does more than the command."""
    return Limits(
        wall_s=limits.wall_s + _OWN_S,
        cpu_s=limits.cpu_s + _OWN_CPU_S,
        memory=limits.memory + _OWN_MEMORY,
        processes=limits.processes + 2,
        open_files=limits.open_files + 16,
        output=limits.output + disk + MAX_HEAD,
        disk=disk + MIB,
    )


@cache
def _script() -> str:
    return Path(__file__).with_name("_shell_guest.py").read_text(encoding="utf-8")
