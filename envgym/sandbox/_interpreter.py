"""A Python that keeps its state between turns, at the inner end of a session's socket.

It shares its process with the agent's code, so nothing that it says or does is trusted: the supervisor checks, the host
bounds. Standard library only; it runs inside sandboxes, beside the supervisor.
"""

import ast
import builtins
import fcntl
import gc
import io
import json
import linecache
import os
import random
import resource
import select
import signal
import socket
import stat
import struct
import sys
import traceback
import types
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any, NamedTuple

from envgym.sandbox._namespaces import clone_into_namespaces, drop_capabilities

Fields = dict[str, Any]  # decoded JSON
_WARM_UPS = 20


class _Held(NamedTuple):
    """A descriptor that the agent's code has open."""

    descriptor: int
    path: str
    """Empty where it cannot be opened again: a clone gets the null device in its place."""
    flags: int
    offset: int


def _held(descriptor: int, status: os.stat_result, name: str | int | None) -> _Held:
    path = os.path.abspath(name) if isinstance(name, str) else ""
    with suppress(OSError):
        if path and stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.stat(path)):
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
            return _Held(descriptor, path, flags, os.lseek(descriptor, 0, os.SEEK_CUR))
    return _Held(descriptor, "", 0, 0)


def _leave(code: object = None) -> None:
    """End the run, as `exit` and `quit` do in an interpreter that has imported `site`. Raises: SystemExit."""
    raise SystemExit(code)


class Interpreter:
    """One session's namespace and its socket."""

    def __init__(self, channel: socket.socket, max_output: int) -> None:
        self._channel = channel
        self._max_output = max_output
        self._module = types.ModuleType("__main__")
        self._module.__dict__["__builtins__"] = builtins
        self._turn = 0
        self._is_running = False
        self._output = -1
        self._directory = os.getcwd()
        self._files: list[_Held] = []

    def serve(self) -> None:
        """Answer requests until the host closes the socket."""
        sys.modules["__main__"] = self._module
        builtins.__dict__["exit"] = builtins.__dict__["quit"] = _leave
        if hasattr(sys, "set_int_max_str_digits"):
            sys.set_int_max_str_digits(0)  # integers of any length are shown; processor time bounds them
        self._capture()
        random.seed(0)
        signal.signal(signal.SIGINT, self._interrupt)
        while (request := self._receive()) is not None:
            fields, blob, descriptors = request
            try:
                answer, content = getattr(self, f"do_{fields['op']}")(fields, blob, descriptors)
            except OSError as error:
                answer, content = {"failed": error.strerror or str(error)}, b""
            if answer is not None:
                self._send(answer, content)

    # ---- what the host asks for ------------------------------------------------------------------------------

    def do_run(self, fields: Fields, blob: bytes, descriptors: list[int]) -> tuple[Fields, bytes]:
        """Run code; answer its output, with the value of a last expression or the traceback."""
        self._turn += 1
        error = self._execute(blob.decode(errors="replace"), f"<turn {self._turn}>")
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        output = self._said()
        os.ftruncate(self._output, 0)
        os.lseek(self._output, 0, os.SEEK_SET)
        return {"error": error}, output

    def do_read(self, fields: Fields, blob: bytes, descriptors: list[int]) -> tuple[Fields, bytes]:
        with open(fields["path"], "rb") as file:
            return {}, file.read(int(fields["size"]) + 1)

    def do_write(self, fields: Fields, blob: bytes, descriptors: list[int]) -> tuple[Fields, bytes]:
        os.makedirs(os.path.dirname(fields["path"]) or ".", exist_ok=True)
        with open(fields["path"], "wb") as file:
            file.write(blob)
        return {}, b""

    def do_fork(self, fields: Fields, blob: bytes, descriptors: list[int]) -> tuple[Fields | None, bytes]:
        """Clone this process once for each descriptor, the socket of the clone; a clone answers nothing."""
        ready, telling = -1, -1
        is_clone = False
        try:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            self._directory, self._files, state = os.getcwd(), self._open_files(descriptors), random.getstate()
            ready, telling = os.pipe()
            for descriptor in descriptors:
                if is_clone := clone_into_namespaces() == 0:
                    drop_capabilities()
                    os.dup2(descriptor, self._channel.fileno())
                    random.setstate(state)  # Python would draw a new one: both sides go on alike
                    return None, b""
        finally:
            for descriptor in (*descriptors, telling):
                if descriptor >= 0:
                    os.close(descriptor)
            if ready >= 0:
                if not is_clone:
                    os.read(ready, 1)  # ends when every clone has closed what is the others'
                os.close(ready)
        return {}, b""

    def do_refresh(self, fields: Fields, blob: bytes, descriptors: list[int]) -> tuple[Fields, bytes]:
        """Leave the files of the process that this one was cloned from, for its own ones at the same paths."""
        os.chdir(self._directory)
        self._capture()
        for file in self._files:
            again = os.open(file.path or os.devnull, file.flags if file.path else os.O_RDWR)
            if file.path:
                os.lseek(again, file.offset, os.SEEK_SET)
            os.dup2(again, file.descriptor)
            os.close(again)
        return {}, b""

    # ---- how ------------------------------------------------------------------------------------------------

    def _execute(self, code: str, name: str) -> str | None:
        """Run code in the session's namespace; return the name of the error that ended it."""
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        self._is_running = True
        try:
            tree = ast.parse(code, name)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, name, "exec"), self._module.__dict__)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), name, "eval"), self._module.__dict__)
                if value is not None:
                    self._module.__dict__["_"] = value
                    print(repr(value))
        except BaseException as error:  # noqa: BLE001  # the agent's code may raise anything; all of it is shown
            self._is_running = False
            self._show(error)
            return type(error).__name__
        finally:
            self._is_running = False
        return None

    def _said(self) -> bytes:
        """Return the output; of one that is too long the beginning and the end, where errors are."""
        size = os.lseek(self._output, 0, os.SEEK_END)
        if size <= self._max_output:
            return os.pread(self._output, size, 0)
        note = f"\n[cut: {size - self._max_output} bytes]\n".encode()
        tail = self._max_output // 4
        head = max(0, self._max_output - tail - len(note))
        return os.pread(self._output, head, 0) + note + os.pread(self._output, tail, size - tail)

    def _show(self, error: BaseException) -> None:
        trace = traceback.TracebackException.from_exception(error)
        frames = [frame for frame in trace.stack if frame.filename != __file__]
        trace.stack = traceback.StackSummary.from_list(frames)
        with suppress(Exception):
            sys.stdout.flush()
        if os.lseek(self._output, 0, os.SEEK_END) > self._max_output:
            os.ftruncate(self._output, self._max_output)  # its place may be full
        with suppress(Exception):
            sys.stderr.write("".join(trace.format()))

    def _interrupt(self, number: int, frame: object) -> None:
        if self._is_running:
            self._is_running = False
            raise KeyboardInterrupt

    def _capture(self) -> None:
        """Send standard output and error, also those of programs started here, into a file without a name."""
        old, self._output = self._output, os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_APPEND, 0o600)
        for standard in (1, 2):
            os.dup2(self._output, standard)
        if old < 0:
            sys.stdout, sys.stderr = (
                io.TextIOWrapper(io.FileIO(standard, "w", closefd=False), errors="backslashreplace", write_through=True)
                for standard in (1, 2)
            )
        else:
            os.close(old)

    def _open_files(self, passed: list[int]) -> list["_Held"]:
        """Return the open files except our own; a path only for Python's files that still lie where they were."""
        ours, others, poll = {self._channel.fileno(), self._output, *passed}, [], select.poll()
        candidates = range(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        for descriptor in candidates:
            poll.register(descriptor, 0)
        closed = {descriptor for descriptor, event in poll.poll(0) if event & select.POLLNVAL}
        for descriptor in {*candidates} - closed - ours:
            with suppress(OSError):
                others.append((descriptor, os.fstat(descriptor)))
        if not others:
            return []
        paths = {
            item.fileno(): item.name for item in gc.get_objects() if isinstance(item, io.FileIO) and not item.closed
        }
        return [_held(descriptor, status, paths.get(descriptor)) for descriptor, status in others]

    def _receive(self) -> tuple[Fields, bytes, list[int]] | None:
        head, descriptors, _, _ = socket.recv_fds(self._channel, 8, 64)
        head += self._exactly(8 - len(head)) if head else b""
        if not head:
            return None
        num_fields, num_blob = struct.unpack("=II", head)
        return json.loads(self._exactly(num_fields)), self._exactly(num_blob), descriptors

    def _exactly(self, size: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            chunk = self._channel.recv(min(size - len(chunks), 1 << 20))
            if not chunk:
                os._exit(0)
            chunks += chunk
        return bytes(chunks)

    def _send(self, fields: Fields, blob: bytes) -> None:
        text = json.dumps(fields).encode()
        self._channel.sendall(struct.pack("=II", len(text), len(blob)) + text + blob)


def warm_up() -> None:
    """Do often enough what every session does, so that its clones need not: they share the memory that they only read.

    Python rewrites bytecode that it runs often, and makes types and modules when they are first used.
    """
    host, channel = socket.socketpair()
    interpreter, output = Interpreter(channel, 1000), io.StringIO()
    interpreter._output = os.memfd_create("output")
    with host, channel, redirect_stdout(output), redirect_stderr(output):
        for code in [b"x = 1\nprint(x)\nx + 1", b"1 / 0"] * _WARM_UPS:
            host.sendall(struct.pack("=II", 2, len(code)) + b"{}" + code)
            request = interpreter._receive()
            assert request is not None
            interpreter._send(*interpreter.do_run(*request))
            host.recv(65536)
    os.close(interpreter._output)
    linecache.clearcache()
    gc.collect()
    gc.freeze()
