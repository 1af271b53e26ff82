"""Machines of this process, for tests of what asks for machines: they keep files and run nothing."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from envgym.errors import ForkUnsupported, InvalidInput, ToolError, ToolInfraFailure
from envgym.sandbox.machines import CommandResult, Machine, MachineSpec
from envgym.sandbox.records import RunEnding

WAIT_S = 30.0


class FileMachine:
    """A machine without programs: keeps files, and does what a command's first word says."""

    def __init__(self, back_end: "FileMachines", files: Mapping[str, bytes]) -> None:
        self.back_end, self.files, self.is_closed = back_end, dict(files), threading.Event()
        self.commands: list[dict[str, Any]] = []

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float,
        output: int = 100,
        workdir: str | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
        user: str | None = None,
        stdin: bytes = b"",
        shell: str | None = None,
    ) -> CommandResult:
        options = {"timeout_s": timeout_s, "output": output, "workdir": workdir, "env": dict(env), "user": user}
        self.commands.append({"command": command, "stdin": stdin, "shell": shell, **options})
        if command == "wait":
            self.is_closed.wait(WAIT_S)
            raise ToolInfraFailure("the machine is gone")
        if str(command) in self.back_end.errors:
            raise self.back_end.errors[str(command)]
        return CommandResult(
            exit_code=3, output=stdin, ending=RunEnding.EXITED, seconds=0.5, dropped=7, is_shell_lost=shell is not None
        )

    def put(
        self,
        files: Mapping[str, bytes],
        directory: str,
        *,
        mode: int = 0o644,
        owner: str = "root",
        is_fresh: bool = False,
    ) -> None:
        self.files = {} if is_fresh else self.files
        self.files |= {f"{directory}/{path} {mode:o} {owner}": content for path, content in files.items()}

    def put_folder(self, path: Path, directory: str, *, owner: str = "root", is_fresh: bool = False) -> None:
        raise NotImplementedError("the server has no folder of the client")

    def get(self, path: str, *, max_bytes: int = 100) -> dict[str, bytes]:
        if len(self.files) > max_bytes:
            raise ToolError("too much")
        return self.files

    def end_processes(self) -> None:
        self.commands.clear()

    def fork(self) -> Machine:
        if self.commands:
            raise ForkUnsupported("it runs")
        return self.back_end.add(self.files)

    def close(self) -> None:
        self.is_closed.set()


class FileMachines:
    """Machines of this process."""

    def __init__(self) -> None:
        self.machines: list[FileMachine] = []
        self.specs: list[MachineSpec] = []
        self.contexts: list[dict[str, tuple[bytes, int]]] = []
        self.errors: dict[str, Exception] = {}

    def add(self, files: Mapping[str, bytes]) -> FileMachine:
        self.machines.append(FileMachine(self, files))
        return self.machines[-1]

    def build(
        self,
        context: Path,
        *,
        dockerfile: str = "Dockerfile",
        bases: Mapping[str, str] = MappingProxyType({}),
        network: bool = False,
        timeout_s: float = 600.0,
    ) -> str:
        files = [path for path in sorted(context.rglob("*")) if path.is_file()]
        self.contexts.append(
            {str(path.relative_to(context)): (path.read_bytes(), path.stat().st_mode & 0o777) for path in files}
        )
        return f"{dockerfile} {dict(bases)} {network} {timeout_s:g}"

    def start(self, spec: MachineSpec) -> Machine:
        self.specs.append(spec)
        InvalidInput.unless(spec.image != "none", "image", "be here", spec.image, where="start", do="build it")
        return self.add({})

    def why_unavailable(self) -> str | None:
        return None
