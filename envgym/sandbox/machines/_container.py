"""One machine of the Docker back-end: orders to the guest of a container, and its answers."""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from envgym.errors import ForkUnsupported, InvalidInput, ToolError, ToolInfraFailure
from envgym.runtime.error_log import log_error
from envgym.sandbox._docker_engine import START_S, WaitingContainer
from envgym.sandbox.machines._engine import MachineEngine
from envgym.sandbox.machines._guest_frames import CHUNK, FRAME, Fields
from envgym.sandbox.machines.records import (
    DEFAULT_OUTPUT,
    MAX_GET,
    ROOT,
    CommandResult,
    Machine,
    MachineSpec,
    check_directory,
    check_env,
)
from envgym.sandbox.machines.requests import check_command, check_files, read_folder
from envgym.sandbox.records import RunEnding

_GRACE_S = 60.0
"""Seconds beyond its time that a command may take to be killed; then the container is."""
_FILES_S = 600.0
"""Seconds that files may take to be written or read."""
_MAX_HEADER = 1 << 20


class DockerMachine:
    """A container with a guest; see `Machine`."""

    def __init__(self, owner: "MachineOwner", container: WaitingContainer, spec: MachineSpec) -> None:
        """Take over a container that has started; `spec` has no open field. Raises: ToolInfraFailure: no guest."""
        self._owner, self._container, self._spec = owner, container, spec
        self._lock = threading.RLock()
        self._buffer = bytearray()
        self._errors = bytearray()
        self._lost = ""
        try:
            self._send({"disk": spec.disk})
            self._receive(time.monotonic() + START_S, CHUNK)
        except BaseException:
            self.close()
            raise

    @property
    def spec(self) -> MachineSpec:
        """What it was started with, the image's own settings filled in."""
        return self._spec

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
        """Run a command and wait until it ends. Raises: as `Machine.run`."""
        check_command(command, timeout_s=timeout_s, output=output, stdin=stdin, shell=shell)
        check_directory(workdir, where="command")
        check_env(env, where="command")
        order = {
            "do": "run",
            "argv": [command] if isinstance(command, str) else ["", *command],
            "env": {**self._spec.env, **env},
            "workdir": workdir or self._spec.workdir,
            "user": user or self._spec.user,
            "timeout": timeout_s,
            "output": output,
            "shell": shell,
        }
        begun = time.monotonic()
        with self._exchanging():
            self._send(order, stdin)
            try:
                fields, content = self._answer(begun + timeout_s + _GRACE_S, output + CHUNK)
            except _Silence:
                self._owner.engine.kill(self._container.id)
                return _result_of_lost(RunEnding.WALL_TIME, time.monotonic() - begun)
            except _GuestEnded as ended:
                if not ended.was_out_of_memory:
                    raise
                return _result_of_lost(RunEnding.MEMORY, time.monotonic() - begun)
        return CommandResult(
            exit_code=fields["code"],
            output=content,
            ending=RunEnding(fields["ending"]),
            seconds=fields["seconds"],
            dropped=fields["dropped"],
            is_shell_lost=fields["lost"],
        )

    def put(
        self,
        files: Mapping[str, bytes],
        directory: str,
        *,
        mode: int = 0o644,
        owner: str = ROOT,
        is_fresh: bool = False,
    ) -> None:
        """Write files below a directory. Raises: as `Machine.put`."""
        self._put({path: (content, mode) for path, content in files.items()}, directory, owner, is_fresh)

    def put_folder(self, path: Path, directory: str, *, owner: str = ROOT, is_fresh: bool = False) -> None:
        """Write a folder's files below a directory. Raises: as `Machine.put_folder`."""
        self._put(read_folder(path), directory, owner, is_fresh)

    def _put(self, files: Mapping[str, tuple[bytes, int]], directory: str, owner: str, is_fresh: bool) -> None:
        check_directory(directory, where="put")
        check_files(files, directory, is_fresh=is_fresh)
        listed = [(path, len(content), mode) for path, (content, mode) in files.items()]
        order = {"do": "put", "directory": directory, "files": listed, "owner": owner, "fresh": is_fresh}
        with self._exchanging():
            self._send(order, b"".join(content for content, _ in files.values()))
            self._done("put")

    def get(self, path: str, *, max_bytes: int = MAX_GET) -> dict[str, bytes]:
        """Return the regular files at an absolute path. Raises: as `Machine.get`."""
        check_directory(path, where="get")
        contents: dict[str, bytearray] = {}
        with self._exchanging():
            self._send({"do": "get", "path": path, "max": max_bytes})
            deadline = time.monotonic() + _FILES_S
            while "path" in (answer := self._receive(deadline, CHUNK))[0]:
                contents.setdefault(_text(answer[0]["path"]), bytearray()).extend(answer[1])
        if "failed" in answer[0]:
            do = "ask for less, or raise max_bytes"
            raise ToolError.of("files", "be within the limits", answer[0]["failed"], where=path, do=do)
        return {name: bytes(content) for name, content in contents.items()}

    def end_processes(self) -> None:
        """Kill every process of the machine. Raises: ToolInfraFailure."""
        with self._exchanging():
            self._send({"do": "end"})
            self._done("end_processes")

    def fork(self) -> Machine:
        """Start another machine with the same files. Raises: as `Machine.fork`."""
        with self._exchanging():
            self._send({"do": "busy"})
            busy = self._answer(time.monotonic() + START_S, CHUNK)[0]["busy"]
            if busy:
                do = "end it first: only files are copied"
                raise ForkUnsupported.of("machine", "run no process", ", ".join(busy), where="fork", do=do)
            return self._owner.fork(self._container.id, self._spec)

    def close(self) -> None:
        """Remove the machine."""
        self._lost = self._lost or "a machine that is closed"
        self._container.close()
        try:
            self._owner.remove(self._container.id)
        except ToolInfraFailure as failure:
            log_error(failure, "a machine could not be removed; the next process that uses the engine does")

    # ---- orders and answers

    def _exchanging(self) -> "_Exchange":
        return _Exchange(self)

    def begin(self) -> None:
        """Wait for the turn of this request. Raises: ToolInfraFailure: the machine is lost."""
        self._lock.acquire()
        if self._lost:
            self._lock.release()
            raise _failure(self._lost)

    def end(self, error: BaseException | None) -> None:
        """Give the turn away; an exchange that did not come to its end leaves the machine in no known state."""
        is_kept = error is None or isinstance(error, (InvalidInput, ToolError, ForkUnsupported))
        if not is_kept:
            self._lost = self._lost or f"an exchange that ended in {type(error).__name__}"
        self._lock.release()

    def _send(self, order: Fields, payload: bytes = b"") -> None:
        text = json.dumps(order).encode()
        try:
            self._container.send(FRAME.pack(len(text), len(payload)) + text + payload)
        except OSError:
            raise self._ended() from None

    def _done(self, where: str) -> None:
        fields, _ = self._answer(time.monotonic() + _FILES_S, CHUNK)
        if "failed" in fields:
            do = "look at what the path is in the machine"
            raise ToolError.of("path", "be writable without following links", fields["failed"], where=where, do=do)

    def _answer(self, deadline: float, max_payload: int) -> tuple[Fields, bytes]:
        while "look" in (answer := self._receive(deadline, max_payload))[0]:
            self._send({"bytes": self._owner.engine.written_bytes(self._container.id)})
        if refused := answer[0].get("refused"):
            raise InvalidInput.of(*refused, where="machine", do="name one that the image has")
        return answer

    def _receive(self, deadline: float, max_payload: int) -> tuple[Fields, bytes]:
        header, size = FRAME.unpack(self._exactly(FRAME.size, deadline))
        if header > _MAX_HEADER or size > max_payload:
            raise self._ended()
        fields: Fields = json.loads(self._exactly(header, deadline))
        return fields, self._exactly(size, deadline)

    def _exactly(self, size: int, deadline: float) -> bytes:
        while len(self._buffer) < size:
            try:
                answer = self._container.receive(deadline - time.monotonic())
            except TimeoutError:
                self._lost = "no answer in time"
                raise _Silence(*_failure(self._lost).args) from None
            except OSError:
                answer = None
            if answer is None:
                raise self._ended()
            if answer[0] == 1:
                self._buffer += answer[1]
            else:
                self._errors = (self._errors + answer[1])[-1000:]
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        return content

    def _ended(self) -> "_GuestEnded":
        ended = self._owner.engine.ended(self._container.id)
        last_error = self._errors.decode(errors="replace").strip().rpartition("\n")[2]
        got = "removal" if ended is None else f"an end with code {ended.exit_code}"
        self._lost = f"{got}: {last_error}" if last_error else got
        return _GuestEnded(_failure(self._lost), was_out_of_memory=ended is not None and ended.was_out_of_memory)


class MachineOwner(Protocol):
    """The back-end of a machine."""

    @property
    def engine(self) -> MachineEngine:
        """The engine of its container."""

    def fork(self, id: str, spec: MachineSpec) -> Machine:
        """Start a machine from the files of a container."""

    def remove(self, id: str) -> None:
        """Remove a container, and the copy of files that it was started from."""


class _GuestEnded(ToolInfraFailure):
    """The first process of a machine has ended."""

    def __init__(self, failure: ToolInfraFailure, *, was_out_of_memory: bool) -> None:
        super().__init__(*failure.args)
        self.was_out_of_memory = was_out_of_memory


class _Silence(ToolInfraFailure):
    """The first process of a machine does not answer."""


class _Exchange:
    """The turn of one request to a machine."""

    def __init__(self, machine: DockerMachine) -> None:
        self._machine = machine

    def __enter__(self) -> None:
        self._machine.begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._machine.end(error)


def _failure(got: str) -> ToolInfraFailure:
    return ToolInfraFailure.of("machine", "run", got, where="machines", do="start another one")


def _result_of_lost(ending: RunEnding, seconds: float) -> CommandResult:
    return CommandResult(exit_code=-1, output=b"", ending=ending, seconds=seconds, is_machine_lost=True)


def _text(path: str) -> str:
    """Return a file's name as text, whatever its bytes are."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
