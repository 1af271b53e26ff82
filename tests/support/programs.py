"""Programs that tests start: `python -m envgym ...` or `python -c ...`, in forks of one that has imported torch.

A program has a process, a process group, a directory, an environment and standard streams of its own, and ends as a
Python program does; only the imports, seconds of each, were made before it began.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.program_server import MAX_REQUEST
from tests.support.sources import ROOT


@cache
def _server() -> socket.socket:
    """Start the process that programs are forked from; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", "-m", "tests.support.program_server", str(its.fileno())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=null, stdout=null, env=environment, pass_fds=[its.fileno()])
    its.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class Program:
    """A program that runs, with text pipes for its input and output, as `subprocess.Popen` has them."""

    returncode: int | None = None
    """The exit code, or the negative number of the signal that ended it, once somebody has looked."""

    def __init__(
        self, arguments: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Start `python ARGUMENTS`, in this directory and with this environment unless others are given."""
        environment = dict(os.environ if env is None else env)
        request = {"arguments": list(arguments), "directory": str(cwd or Path.cwd()), "environment": environment}
        data = json.dumps(request).encode()
        assert len(data) < MAX_REQUEST
        (stdin, to_stdin), (from_stdout, stdout), (from_status, status) = (os.pipe() for _ in range(3))
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by __exit__, as the next three are
        socket.send_fds(_server(), [data], [stdin, stdout, self._stderr.fileno(), status])
        for descriptor in (stdin, stdout, status):
            os.close(descriptor)
        self.stdin, self.stdout = os.fdopen(to_stdin, "w"), os.fdopen(from_stdout)
        self._status = os.fdopen(from_status, "rb", 0)
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        return self.wait() if self.returncode is not None or select.select([self._status], [], [], 0)[0] else None

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = int(self._status.readline())
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, signal.SIGKILL)

    def communicate(self, given: str = "") -> tuple[str, str]:
        """Say something, wait for the end, and return what was left of standard output, and standard error."""
        self.stdin.write(given)
        self.stdin.close()
        out = self.stdout.read()
        self.wait()
        self._stderr.seek(0)
        return out, self._stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdin.close()
        self.stdout.close()
        self.wait()
        self._status.close()
        self._stderr.close()


def run_program(
    *arguments: str, given: str = "", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    with Program(arguments, cwd=cwd, env=env) as program:
        out, err = program.communicate(given)
        return subprocess.CompletedProcess(list(arguments), program.wait(), out, err)
